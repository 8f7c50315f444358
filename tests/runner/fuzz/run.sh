#!/bin/sh
# Fuzzes the runner's parsers under ASan and UBSan: run.sh [SECONDS for each of three, 20] [DIRECTORY to build in].
# In a mount namespace that can be written in /tmp only: a bug in the file harness must not cost a machine.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
src=$here/../../../rayroll/runner/src
seconds=${1:-20}
build=${2:-$(mktemp -d)}
flags="-g -O1 -std=c11 -D_GNU_SOURCE -fno-omit-frame-pointer -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined"
core="$src/bytes.c $src/system.c"

mkdir -p "$build"
clang $flags -I"$src" -o "$build/frames" "$here/frames.c" $core "$src/loop.c" "$src/state.c"
clang $flags -I"$src" -o "$build/state" "$here/state.c" $core "$src/state.c"
clang $flags -I"$src" -o "$build/put" "$here/put.c" $core "$src/put.c" "$src/worker.c" "$src/walk.c" "$src/baseline.c" "$src/facts.c" "$src/sha256.c" "$src/user.c"

for harness in frames state put; do
    # New inputs stay in the build directory; what a bug needs is written there as crash-*.
    mkdir -p "$build/new-$harness"
    bwrap --ro-bind / / --tmpfs /tmp --bind "$build" "$build" --ro-bind "$here/corpus" "$here/corpus" --dev /dev --proc /proc --die-with-parent --chdir "$build" -- \
        "$build/$harness" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=1024 -max_len=4096 -print_final_stats=0 \
        -verbosity=0 -artifact_prefix="$build/" "$build/new-$harness" "$here/corpus/$harness"
done
echo "no bug in $seconds s each"
