"""Checks a substrate from a command line: ``python -m rayroll.testing.conformance local``."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rayroll.errors import RayrollError
from rayroll.substrates import SandboxSpec, kinds, load
from rayroll.testing.conformance import CHECKS, Capability, Report, Result, check
from rayroll.testing.conformance._docs import replace_list

__all__ = ["main", "run"]


def run(
    kind: str,
    *,
    config: dict[str, object] | None = None,
    image: str | None = None,
    only: Sequence[str] = (),
    promises: Sequence[Capability] = (),
    many: int = 40,
    slow: bool = True,
    say: bool = True,
) -> Report:
    """Check a substrate by its name and print one line per finding; for ``rayroll doctor`` and this command.

    Args:
        kind: Name of the substrate.
        config: Fields of its configuration.
        image: Image of every sandbox; None: the substrate's plainest system.
        only: Names of checks or themes; empty: all.
        promises: What its sandboxes must have.
        many: Sandboxes at the same time, for the checks about many.
        slow: Also what takes seconds.
        say: Print while it goes on.

    Raises:
        ConfigError: Unknown names.
        SubstrateError: No sandbox could be made at all.
    """
    substrate = load(kind)
    done = 0

    def on_result(result: Result) -> None:
        nonlocal done
        done += 1
        if say and result.outcome != "held":
            print(f"{result.outcome}: {result.name}: {result.reason}", file=sys.stderr, flush=True)  # noqa: T201
        elif say and sys.stderr.isatty():
            print(f"\r\x1b[2K{done} {result.name}", end="\r", file=sys.stderr, flush=True)  # noqa: T201

    return asyncio.run(
        check(
            substrate.config_type.parse(config or {}, where=kind),
            spec=SandboxSpec(image=image),
            only=only,
            promises=promises,
            many=many,
            slow=slow,
            on_result=on_result,
        )
    )


def main(argv: Sequence[str] | None = None) -> int:
    """The command; 0 when nothing is broken, 1 when something is, 2 when it could not be checked."""
    arguments = _parser().parse_args(argv)
    if arguments.list:
        for one in CHECKS.values():
            print(f"{one.theme:11} {one.name}: {one.claim}")  # noqa: T201
        return 0
    if arguments.write_list:
        replace_list(arguments.write_list)
        return 0
    if arguments.kind is None:
        print(f"say which substrate: {', '.join(kinds())}", file=sys.stderr)  # noqa: T201
        return 2
    try:
        report = run(
            arguments.kind,
            config=dict(arguments.set),
            image=arguments.image,
            only=arguments.only,
            promises=[Capability[name] for name in arguments.promise],
            many=arguments.many,
            slow=not arguments.quick,
        )
    except RayrollError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)  # noqa: T201
        return 2
    print(json.dumps(report.to_json(), indent=2) if arguments.json else report)  # noqa: T201
    return 0 if report.ok else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m rayroll.testing.conformance", description="Checks that a substrate keeps its contract."
    )
    parser.add_argument("kind", nargs="?", help="name of the substrate, such as local or docker")
    parser.add_argument("--set", metavar="FIELD=VALUE", type=_setting, action="append", default=[], help="configure it")
    parser.add_argument("--image", help="image of every sandbox")
    parser.add_argument(
        "--only", metavar="NAME", action="append", default=[], help="a check or a theme; again for more"
    )
    parser.add_argument(
        "--promise",
        action="append",
        default=[],
        choices=[c.name for c in Capability],
        help="must be there, or it is broken",
    )
    parser.add_argument("--many", type=int, default=40, help="sandboxes at the same time, where many are needed")
    parser.add_argument("--quick", action="store_true", help="leave out what takes seconds")
    parser.add_argument("--json", action="store_true", help="print the whole report as JSON")
    parser.add_argument("--list", action="store_true", help="print every check and stop")
    parser.add_argument("--write-list", metavar="FILE", type=Path, help=argparse.SUPPRESS)
    return parser


def _setting(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not FIELD=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


if __name__ == "__main__":
    sys.exit(main())
