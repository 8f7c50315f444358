#!/bin/sh
echo unseal
