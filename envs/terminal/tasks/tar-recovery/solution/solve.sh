#!/bin/sh
set -eu
python3 - <<'PY'
import hashlib
from pathlib import Path

data = Path("/app/backup.tar").read_bytes()
manifest = {}
for line in Path("/app/MANIFEST.sha256").read_text().splitlines():
    digest, _, name = line.partition("  ")
    manifest[digest] = name

# Files begin at blocks of 512 bytes. Whole headers tell sizes; where a header is gone, try every size until its sum fits.
blocks = range(0, len(data), 512)
sizes = set()
for at in blocks:
    try:
        sizes.add(int(data[at + 124 : at + 135].strip(b"\0 ") or b"x", 8))
    except ValueError:
        pass
restored = {}
for at in blocks:
    for size in sizes:
        digest = hashlib.sha256(data[at : at + size]).hexdigest()
        if digest in manifest and at + size <= len(data):
            restored[manifest[digest]] = data[at : at + size]
for at in blocks:
    missing = {digest for digest, name in manifest.items() if name not in restored}
    if not missing:
        break
    running = hashlib.sha256()
    for end in range(at, min(len(data), at + 8192)):
        if running.hexdigest() in missing:
            restored[manifest[running.hexdigest()]] = data[at:end]
        running.update(data[end : end + 1])

for name, content in restored.items():
    path = Path("/app/restored") / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
lost = sorted(name.encode() for name in manifest.values() if name not in restored)
Path("/app/lost.txt").write_bytes(b"".join(name + b"\n" for name in lost))
PY
