# not a program
!#/bin/sh
