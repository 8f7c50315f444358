"""The commands: `up`, `status`, `down`, `env`."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from bed.errors import TestbedError
from bed.packages import install
from bed.part import Bed, Part, all_parts, in_order
from bed.place import Place
from bed.steps import Steps


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 0 when it did what it was asked for."""
    arguments = _parser().parse_args(argv)
    bed = Bed(Place.from_environment(os.environ), Steps(), os.environ)
    try:
        parts = all_parts()
        if arguments.command == "env":
            return _env(bed, parts)
        if arguments.command == "status":
            return _status(bed, parts, arguments.parts, as_json=arguments.json)
        if os.geteuid() != 0:
            raise TestbedError(f"{arguments.command} needs root: it makes bridges, mounts and control groups")
        bed.place.make()
        with _one_at_a_time(bed):
            if arguments.command == "up":
                _up(bed, parts, arguments.parts)
            else:
                _down(bed, parts, arguments.parts, purge=arguments.purge)
    except TestbedError as error:
        print(f"testbed: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="testbed", description="Real machines for tests, on one Debian machine.")
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="set up what is missing of the parts and of what they need")
    status = commands.add_parser("status", help="say what runs; exit code 3 when something asked for does not")
    down = commands.add_parser("down", help="stop the parts and what needs them; images and caches stay")
    commands.add_parser("env", help="print the exports of the running parts, for eval")
    for command in (up, status, down):
        command.add_argument("parts", nargs="*", metavar="PART", help="default: all")
    status.add_argument("--json", action="store_true", help="for programs")
    down.add_argument("--purge", action="store_true", help="also delete the images and caches (with no PART)")
    return parser


def _up(bed: Bed, parts: Mapping[str, Part], names: Sequence[str]) -> None:
    began_s = time.monotonic()
    wanted = in_order(names or parts, parts)
    install([package for part in wanted.values() for package in part.packages], bed.steps)
    for part in wanted.values():
        part.up(bed)
        _write_env(bed, parts)  # after each part: the next may take minutes, and others wait for this one
    bed.steps.note(f"up: {' '.join(wanted)} in {time.monotonic() - began_s:.1f} s; variables: {bed.place.env_file}")


def _down(bed: Bed, parts: Mapping[str, Part], names: Sequence[str], *, purge: bool) -> None:
    if purge and names:
        raise TestbedError("--purge deletes what all parts share: it goes with no PART")
    in_order(names, parts)  # refuses unknown names
    leaving: list[Part] = []
    for part in parts.values():  # in their order, so that what a part needs has been looked at before it
        if part.name in (names or parts) or set(part.needs) & {needed.name for needed in leaving}:
            leaving.append(part)
    for part in reversed(leaving):
        with bed.steps.step(f"{part.name}: down"):
            part.down(bed)
    _write_env(bed, parts)
    if not names:
        bed.place.env_file.unlink(missing_ok=True)
    if purge:
        bed.place.delete()


def _status(bed: Bed, parts: Mapping[str, Part], names: Sequence[str], *, as_json: bool) -> int:
    in_order(names, parts)  # refuses unknown names
    seen = {
        name: {"is_running": part.is_running(bed), **part.facts(bed)}
        for name, part in parts.items()
        if name in (names or parts)
    }
    if as_json:
        print(json.dumps(seen, indent=1))
    else:
        for name, facts in seen.items():
            _print_facts(name, facts)
    return 0 if all(facts["is_running"] for facts in seen.values()) else 3


def _print_facts(name: str, facts: Mapping[str, object]) -> None:
    print(f"{name}: {'running' if facts['is_running'] else 'not running'}")
    for fact, value in facts.items():
        if fact == "is_running":
            continue
        if isinstance(value, Mapping):
            print(f"  {fact}:")
            for key, item in value.items():
                print(f"    {key}: {_readable(fact, item)}")
        else:
            print(f"  {fact}: {_readable(fact, value)}")


def _readable(fact: str, value: object) -> str:
    return f"{value / 1e6:.1f} MB" if fact.endswith("_bytes") and isinstance(value, int) else str(value)


def _env(bed: Bed, parts: Mapping[str, Part]) -> int:
    exports = _exports(bed, parts)
    print(exports, end="")
    if not exports:
        raise TestbedError("no part is running; set one up with: testbed up docker")
    return 0


def _write_env(bed: Bed, parts: Mapping[str, Part]) -> None:
    whole = bed.place.env_file.with_suffix(".part")  # renamed when whole: a shell may be reading the old one
    whole.write_text(_exports(bed, parts))
    whole.rename(bed.place.env_file)


def _exports(bed: Bed, parts: Mapping[str, Part]) -> str:
    running = [part for part in parts.values() if part.is_running(bed)]
    variables = {name: value for part in running for name, value in part.exports(bed).items()}
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())


@contextmanager
def _one_at_a_time(bed: Bed) -> Iterator[None]:
    """Two `up` at once would both find everything missing; the second waits for the first and then finds it there."""
    with (bed.place.run / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            bed.steps.note("waiting for another testbed command to end")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
