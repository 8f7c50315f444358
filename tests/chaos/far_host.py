"""A session as a host far away holds it: ``far_host.py SUBSTRATE CONFIG ACTIONS``, what it saw as JSON on stdout."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import little

from rayroll import SessionConfig, SyncClient

SCRIPT = "echo {0}; seq 20000 | md5sum; echo {0} >> log; exit {0}"


def main(kind: str, config: str, actions: str) -> None:
    """Open, act, grade, close."""
    patient = SessionConfig(lease_s=20.0, hello_timeout_s=60.0)
    with (
        SyncClient(kind, substrate_config=json.loads(config), config=patient) as client,
        client.open(little.task()) as session,
    ):
        results = [session.exec(SCRIPT.format(number)) for number in range(int(actions))]
        session.exec("echo 42 > answer.txt")
        log = session.read("/app/log").decode()
        reward = session.grade().reward
    seen = {
        "work": [[result.output, result.exit_code] for result in results] + [log, reward],
        "run_s": [result.timing.run_ns / 1e9 for result in results],
        "transport_s": [(result.timing.round_trip_ns - result.timing.busy_ns) / 1e9 for result in results],
    }
    sys.stdout.write(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
