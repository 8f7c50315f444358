"""Runs checks against one substrate: as a coroutine, as pytest tests, or for a command line."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager

from rayroll.errors import ConfigError
from rayroll.substrates import SandboxSpec, Substrate, SubstrateConfig
from rayroll.testing import leaks
from rayroll.testing.conformance._lab import Lab
from rayroll.testing.conformance._registry import Broken, Capability, Check, NotApplicable, expect, select
from rayroll.testing.conformance._report import Outcome, Report, Result

__all__ = ["check", "suite"]

MANY = 40
"""The pool of connections of common client libraries holds 10; four rounds of those are told from one."""


async def check(
    subject: Substrate | SubstrateConfig,
    *,
    spec: SandboxSpec | None = None,
    only: Sequence[str] = (),
    promises: Sequence[Capability] = (),
    many: int = MANY,
    slow: bool = True,
    on_result: Callable[[Result], None] = lambda _: None,
) -> Report:
    """Check a substrate, and return what came of it; nothing is raised for a broken claim.

    Args:
        subject: An open substrate, or the configuration of one that is opened and closed here.
        spec: What every sandbox is like; None: the substrate's plainest system.
        only: Names of checks or themes; empty: all.
        promises: What sandboxes must have. A check that lacks a promised capability is broken, not inapplicable.
        many: Sandboxes at the same time, for the checks about many.
        slow: Also what waits for seconds or starts many sandboxes.
        on_result: Called after every check.

    Raises:
        ConfigError: No check has that name.
        SubstrateError: Not even a first sandbox could be made.
    """
    chosen = select(tuple(only), slow=slow)
    start_s = time.monotonic()
    results: list[Result] = []
    async with _opened(subject) as substrate:
        facts = (await substrate.probe()).facts
        async with _lab(substrate, spec or SandboxSpec(), many, chosen) as lab:
            for one in chosen:
                results.append(await run_check(lab, one, promises))
                on_result(results[-1])
    return Report(substrate.kind, results, facts, time.monotonic() - start_s)


@asynccontextmanager
async def _opened(subject: Substrate | SubstrateConfig) -> AsyncIterator[Substrate]:
    if isinstance(subject, Substrate):
        yield subject
        return
    async with substrate_of(subject) as substrate:
        yield substrate


@asynccontextmanager
async def _lab(substrate: Substrate, spec: SandboxSpec, many: int, checks: Sequence[Check]) -> AsyncIterator[Lab]:
    lab = Lab(substrate, spec, many=many)
    try:
        await lab.open(checks)
        yield lab
    finally:
        await lab.close()


def substrate_of(config: SubstrateConfig) -> Substrate:
    """The substrate that takes a configuration: the class of the same module whose ``config_type`` it is.

    Raises:
        ConfigError: There is none there.
    """
    for value in vars(sys.modules[type(config).__module__]).values():
        if (
            isinstance(value, type)
            and issubclass(value, Substrate)
            and getattr(value, "config_type", None) is type(config)
        ):
            return value(config)
    raise ConfigError(
        "no substrate for this configuration in its module; give the substrate itself", config=type(config).__qualname__
    )


async def run_check(lab: Lab, check: Check, promises: Sequence[Capability]) -> Result:
    """One check, in order or in a new sandbox; never raises for what it finds."""
    start_s = time.monotonic()

    def result(outcome: Outcome, reason: str = "", error: BaseException | None = None) -> Result:
        return Result(check.name, check.theme, check.claim, outcome, reason, time.monotonic() - start_s, error)

    try:
        async with asyncio.timeout(check.limit_s) as guard:
            await lab.prepare()
            if reason := await lab.missing(check):
                for capability in check.needs:
                    if capability in promises and await lab.lacks(capability):
                        raise Broken(f"it was promised that {capability}, but {reason}")
                return result("not applicable", reason)
            await lab.run(check)
    except NotApplicable as why:
        return result("not applicable", str(why))
    except TimeoutError as error:
        whole = f"it hangs: not over after {check.limit_s:g} s"
        return result("broken", whole if guard.expired() else "a step of it hangs", error)
    except Broken as error:
        return result("broken", str(error), error)
    except Exception as error:  # whatever a substrate may raise is a finding about it, and the next check goes on
        return result("broken", f"{type(error).__name__}: {error}", error)
    return result("held")


def suite(
    subject: Substrate | SubstrateConfig,
    *,
    spec: SandboxSpec | None = None,
    only: Sequence[str] = (),
    promises: Sequence[Capability] = (),
    many: int = MANY,
    slow: bool = True,
    lasting: Sequence[str] = (),
) -> type:
    """A class of pytest tests, one per check: bind it to a name that begins with ``Test``.

    Where the substrate's probe says that it cannot run, the tests are skipped with its reason and fix; where the
    environment's ``RAYROLL_REQUIRE`` names its kind, they fail.

    >>> TestMine = conformance.suite(MineConfig())

    Args:
        subject: The configuration, or a substrate that is not open yet.
        spec: As for ``check``, like ``only``, ``promises``, ``many`` and ``slow``.
        only: Names of checks or themes.
        promises: What sandboxes must have.
        many: Sandboxes at the same time.
        slow: Also what takes seconds.
        lasting: Parts of names of threads and child processes of its SDK that outlive it by design.
    """
    import pytest

    chosen = select(tuple(only), slow=slow)

    class Conformance:
        """Every check of the suite, in one shared sandbox where it does no harm."""

        owns_leaks = True
        """The shared sandbox outlives one test; what is left is looked for at the end of the class."""

        @pytest.fixture(scope="class")
        @classmethod
        def run(cls) -> Iterator[Callable[[Check], Result]]:
            substrate = subject if isinstance(subject, Substrate) else substrate_of(subject)
            watching = leaks.watch(
                threads=(*leaks.LASTING_THREADS, *lasting), processes=(*leaks.LASTING_PROCESSES, *lasting)
            )
            # A loop of its own, so that the sandbox, its lease and its client live as long as the class.
            with watching, asyncio.Runner() as loop:
                probe = loop.run(substrate.probe())
                if not probe.ok:
                    message = f"{substrate.kind}: {probe.reason}" + (f"; fix: {probe.fix}" if probe.fix else "")
                    if substrate.kind in os.environ.get("RAYROLL_REQUIRE", "").split(","):
                        pytest.fail(message, pytrace=False)
                    pytest.skip(message)
                lab = Lab(substrate, spec or SandboxSpec(), many=many)
                loop.run(substrate.open())
                try:
                    loop.run(lab.open(chosen))
                    yield lambda check: loop.run(run_check(lab, check, promises))
                finally:
                    loop.run(lab.close())
                    left = loop.run(substrate.list({"run": lab.run_id}))
                    loop.run(substrate.close())
                expect(not left, "no sandbox is left behind", left=left)

        @pytest.mark.parametrize("check", chosen, ids=lambda check: check.name)
        def test_conforms(self, run: Callable[[Check], Result], check: Check) -> None:
            result = run(check)
            if result.outcome == "not applicable":
                pytest.skip(result.reason)
            if result.error is not None:
                raise result.error
            assert result.outcome == "held"

    return Conformance
