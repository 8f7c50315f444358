#!/bin/sh
set -eu
python3 - <<'PY'
import json, math, re
from collections import Counter

pattern = re.compile(r'(\S+) - - \[[^\]]*\] "(\w+) (\S+) HTTP/1\.1" (\d\d\d) (\d+|-) (\d+)$')
requests, malformed = [], 0
for line in open("/app/access.log", encoding="latin-1", newline="\n"):
    line = line.rstrip("\n")
    if not line:
        continue
    match = pattern.match(line)
    if match is None:
        malformed += 1
        continue
    client, _, path, status, size, ms = match.groups()
    requests.append((client, path.split("?")[0], status[0] + "xx", int(size.replace("-", "0")), int(ms)))

paths = Counter(path for _, path, _, _, _ in requests)
volume = Counter()
for client, _, _, size, _ in requests:
    volume[client] += size
times = sorted(ms for *_, ms in requests)
report = {
    "requests": len(requests),
    "malformed": malformed,
    "by_status": Counter(kind for _, _, kind, _, _ in requests),
    "top_paths": sorted(paths.items(), key=lambda item: (-item[1], item[0]))[:3],
    "busiest_client": max(volume, key=volume.get),
    "p95_ms": times[math.ceil(len(times) * 0.95) - 1],
}
json.dump(report, open("/app/report.json", "w"), indent=2)
PY
