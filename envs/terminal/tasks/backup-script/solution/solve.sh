#!/bin/sh
set -eu
cat > /app/backup.sh <<'SCRIPT'
#!/bin/sh
# backup.sh SOURCE TARGET KEEP: copy configuration files to TARGET/STAMP and forget old copies.
set -u

die() {
    code=$1
    shift
    echo "backup.sh: $*" >&2
    exit "$code"
}

[ $# -eq 3 ] || die 2 "usage: backup.sh SOURCE TARGET KEEP"
case $3 in
    '' | *[!0-9]*) die 2 "KEEP is not a whole number: $3" ;;
esac
[ "$3" -ge 1 ] || die 2 "KEEP is less than 1"
keep=$3
[ -d "$1" ] || die 1 "not a folder: $1"
src=$(cd -- "$1" && pwd) || exit 1
case $2 in
    /*) dst=$2 ;;
    *) dst=$PWD/$2 ;;
esac
stamp=${BACKUP_STAMP:-$(date +%Y%m%d-%H%M%S)}

cd -- "$src" || exit 1
# One dot a file: names may hold line breaks, so lines cannot be counted.
count=$(find . -type f -name '*.conf' -exec printf '.%.0s' {} + | wc -c)
count=$((count))
[ "$count" -gt 0 ] || die 1 "nothing to copy in $src"

BACKUP_TO=$dst/$stamp find . -type f -name '*.conf' -exec sh -c '
    for file do
        mkdir -p -- "$BACKUP_TO/${file%/*}" && cp -- "$file" "$BACKUP_TO/$file" || exit 1
    done' sh {} + || die 1 "some files could not be copied"

export LC_ALL=C
cd -- "$dst" || exit 1
set --
for entry in *; do
    [ -d "$entry" ] && set -- "$@" "$entry"
done
while [ $# -gt "$keep" ]; do
    rm -rf -- "./$1" || exit 1
    shift
done
echo "$count"
SCRIPT
chmod 755 /app/backup.sh
