#!/bin/sh
set -eu
cd /app/release
find . -type d -exec chmod 755 {} +
find . -type f -exec sh -c '
    for file do
        start=$(head -c 4 "$file" | od -An -tx1 | tr -d " \n")
        case $start in
            2321* | 7f454c46) chmod 755 "$file" ;;
            *) chmod 644 "$file" ;;
        esac
    done' sh {} +
find secrets -type d -exec chmod 700 {} +
find secrets -type f -exec chmod 600 {} +
