#!/bin/sh
# One way to do it. A task is proven before it is used: with this it passes, without it it fails, five times in a row.
set -eu
grep . /app/names.txt | while IFS= read -r name; do
    echo "Hello, $name!"
done > /app/greetings.txt
