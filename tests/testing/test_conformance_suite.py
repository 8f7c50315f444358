"""The suite as its users meet it: a report, a command, a list in the documentation."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from requirements import needs

from rayroll.errors import ConfigError
from rayroll.substrates.local import LocalConfig
from rayroll.testing import conformance
from rayroll.testing.conformance import CHECKS, Check, NotApplicable, expect, same
from rayroll.testing.conformance.__main__ import main
from rayroll.testing.conformance._docs import BEGIN, END, check_list
from rayroll.testing.conformance._lab import Lab

needs_local = needs("local")
pytestmark = pytest.mark.local
CONFIG = LocalConfig(rootfs="host")


@contextmanager
def extra(**checks: Check) -> Iterator[None]:
    CHECKS.update(checks)
    try:
        yield
    finally:
        for name in checks:
            del CHECKS[name]


def of(function, **changes) -> Check:  # type: ignore[no-untyped-def]
    return Check(function.__name__, "extra", "A claim.", function, **changes)


async def test_a_report_counts_what_held_and_names_what_did_not() -> None:
    async def fails(lab: Lab) -> None:
        same(1, 2, "one")

    async def makes_no_sense(lab: Lab) -> None:
        raise NotApplicable("it is a Tuesday")

    async def holds(lab: Lab) -> None:
        same((await lab.box.sh("echo hi")).output, "hi\n", "the output")

    async def raises(lab: Lab) -> None:
        raise KeyError("surprise")

    async def hangs(lab: Lab) -> None:
        await asyncio.sleep(60)

    with extra(
        fails=of(fails),
        makes_no_sense=of(makes_no_sense),
        holds=of(holds),
        raises=of(raises),
        hangs=of(hangs, limit_s=0.5),
    ):
        report = await conformance.check(CONFIG, only=["extra"])
    assert {r.name: (r.outcome, r.reason) for r in report.results} == {
        "fails": ("broken", "one is 1 instead of 2"),
        "makes_no_sense": ("not applicable", "it is a Tuesday"),
        "holds": ("held", ""),
        "raises": ("broken", "KeyError: 'surprise'"),
        "hangs": ("broken", "it hangs: not over after 0.5 s"),
    }
    assert "1 held, 3 broken, 1 not applicable of 5 checks" in str(report)
    with pytest.raises(conformance.Broken, match="one is 1 instead of 2"):
        report.require()


async def test_a_check_that_ruins_the_shared_sandbox_does_not_disturb_the_next() -> None:
    seen: list[tuple[str, str]] = []

    async def ruins(lab: Lab) -> None:
        await lab.box.sh("export EVIL=1 PATH=/nowhere; cd /; sleep 600 & echo x > /tmp/left-by-ruins")
        await lab.box.client.write_file(lab.box.path("file"), b"x")
        await lab.substrate.destroy(lab.box.ref)
        expect(False, "this one is broken on purpose")

    async def exports(lab: Lab) -> None:
        await lab.box.sh("export EVIL='a b\nc' PATH=/nowhere; cd /; sleep 600 &")

    async def looks(lab: Lab) -> None:
        r = await lab.box.sh('echo "${EVIL-none}"; ls /proc | grep -c "^[0-9]"; echo "$PATH"')
        names = [e.path for e in await lab.box.client.list_tree(lab.box.folder)]
        seen.append((r.output.split("\n")[0], str(names)))
        expect("/usr/bin" in r.output, "PATH is as it was", output=r.output)

    checks = {"ruins": of(ruins), "looks": of(looks), "exports": of(exports), "looks_again": of(looks)}
    with extra(**{name: Check(name, "extra", "A claim.", c.function) for name, c in checks.items()}):
        report = await conformance.check(CONFIG, only=["extra"])
    assert [r.outcome for r in report.results] == ["broken", "held", "held", "held"], str(report)
    assert seen == [("none", "[b'', b'.here']")] * 2


async def test_nothing_is_left_after_a_report() -> None:
    from rayroll.substrates.local import LocalSubstrate

    async with LocalSubstrate(CONFIG) as substrate:
        before = await substrate.list({})
        await conformance.check(substrate, only=["output_and_exit_code_are_the_commands_own", "life"], slow=False)
        left = [r for r in await substrate.list({}) if r not in before and r.run_id.startswith("conformance-")]
    assert left == []


async def test_an_unknown_check_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="output_and_exit_code_are_the_commands_own"):
        await conformance.check(CONFIG, only=["output_and_exit_code_are_the_command"])


def test_a_configuration_without_a_substrate_says_what_to_give_instead() -> None:
    from rayroll.substrates import SubstrateConfig

    class Lonely(SubstrateConfig):
        pass

    with pytest.raises(ConfigError, match="give the substrate itself"):
        conformance._run.substrate_of(Lonely())


def test_the_command_ends_with_0_and_a_summary(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["local", "--only", "output_and_exit_code_are_the_commands_own", "--set", "rootfs=host"]) == 0
    assert "local: 1 held, 0 broken" in capsys.readouterr().out


def test_the_command_ends_with_1_when_a_promise_is_broken() -> None:
    command = [sys.executable, "-m", "rayroll.testing.conformance", "local", "--json", "--set", "isolation=none"]
    done = subprocess.run(
        [*command, "--only", "the_hosts_files_stay_outside", "--promise", "OWN_PIDS"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert [r["outcome"] for r in json.loads(done.stdout)["results"]] == ["broken"]


def test_the_command_ends_with_2_and_the_nearest_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lokal"]) == 2
    assert "did you mean 'local'" in capsys.readouterr().err


def test_every_check_is_in_the_documentation_as_it_is() -> None:
    page = (Path(__file__).parents[2] / "docs" / "conformance.md").read_text()
    written = page.partition(BEGIN)[2].partition(END)[0].strip()
    assert written == check_list().strip(), (
        "run: python -m rayroll.testing.conformance --write-list docs/conformance.md"
    )


def test_there_are_checks_for_every_reported_failure_of_running_commands() -> None:
    covered = {check.source for check in CHECKS.values()}
    assert {f"B{n:02}" for n in range(1, 15)} | {"B16", "B17", "B19", "B27"} <= covered
