"""Count again, from a copy of the log that the agent never had."""

import json
import math
import re
import unittest
from collections import Counter
from pathlib import Path

LINE = re.compile(
    rb'([0-9a-fA-F.:]+) - - \[[^\]]+\] "([A-Z]+) (\S+) HTTP/1\.1" (\d{3}) (\d+|-) (\d+)'
)


def expected():
    found = []
    malformed = 0
    for line in Path("/tests/access.log").read_bytes().split(b"\n"):
        match = LINE.fullmatch(line)
        if match:
            found.append([group.decode() for group in match.groups()])
        elif line:
            malformed += 1
    paths = Counter(path.partition("?")[0] for _, _, path, _, _, _ in found)
    volume = Counter()
    for client, _, _, _, size, _ in found:
        volume[client] += 0 if size == "-" else int(size)
    times = sorted(int(ms) for *_, ms in found)
    return {
        "requests": len(found),
        "malformed": malformed,
        "by_status": dict(Counter(f"{status[0]}xx" for _, _, _, status, _, _ in found)),
        "top_paths": [list(item) for item in sorted(paths.items(), key=lambda item: (-item[1], item[0]))[:3]],
        "busiest_client": volume.most_common(1)[0][0],
        "p95_ms": times[math.ceil(0.95 * len(times)) - 1],
    }


class Report(unittest.TestCase):
    def test_every_key(self):
        report = json.loads(Path("/app/report.json").read_text())
        for key, value in expected().items():
            with self.subTest(key):
                self.assertEqual(report.get(key), value)


unittest.main(verbosity=2)
