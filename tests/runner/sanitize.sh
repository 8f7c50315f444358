#!/bin/sh
# Runs the live tests against a runner built with ASan and UBSan: sanitize.sh [SECONDS, 40] [more arguments for pytest].
# In an order of its own each time; what does not fit into the time is skipped and said to be.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
seconds=${1:-40}
[ $# -eq 0 ] || shift
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
chmod 755 "$build"
mkdir -m 1777 "$build/logs"

clang -g -O1 -std=c11 -D_GNU_SOURCE -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined \
    -Wall -Wextra -o "$build/runner" "$here"/../../rayroll/runner/src/*.c

cd "$here/../.."
RAYROLL_SANITIZED_RUNNER=$build/runner RAYROLL_SANITIZER_LOGS=$build/logs RAYROLL_STOP_AFTER_S=$seconds \
    RAYROLL_SEED=${RAYROLL_SEED:-$(date +%s)} RAYROLL_REQUIRE=local "${PYTHON:-python}" -m pytest -q -p no:cacheprovider tests/runner \
    --deselect tests/runner/test_build.py --deselect tests/runner/test_aarch64.py --deselect tests/runner/test_fuzz.py "$@"
