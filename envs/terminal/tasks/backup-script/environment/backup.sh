#!/bin/sh
# backup.sh SOURCE TARGET KEEP: copy configuration files to TARGET/STAMP and forget old copies.

src=$1
dst=$2
keep=$3
stamp=${BACKUP_STAMP:-$(date +%Y%m%d-%H%M%S)}

mkdir -p $dst/$stamp
count=0
find $src -name '*.conf' | while read file; do
    rel=${file#$src/}
    cp $file $dst/$stamp/$(basename $rel)
    count=$((count + 1))
done
echo $count

n=$(ls $dst | wc -l)
for old in $(ls -r $dst); do
    if [ $n -gt $keep ]; then
        rm -r $dst/$old
        n=$((n - 1))
    fi
done
exit 0
