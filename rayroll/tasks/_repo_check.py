"""The grader of a repo_fix task: are exactly the tests green that are green in the untouched package?

It is copied to ``/tests/check.py`` and runs there with nothing but the standard library, and pytest where the package's
tests are written for it. The tests come from ``/tests/pristine``, never from the repository the agent worked in, and so
does every conftest.py; no configuration is read, no plugin is loaded by itself, and the agent's folder is put on the
import path after everything of pytest that is needed has been imported from where the agent's folder is not.

Not defended: the code under test runs in the process that runs the tests, so code written to attack pytest from inside
can report what it likes. A grade with a timeout, a crash or a missing test is 0; only a missing pytest is no verdict.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

LOGS = Path("/logs/verifier")
MESSAGE_CHARS = 1500
TAIL_BYTES = 8 << 10
NO_VERDICT = 3


def main() -> int:
    """Run the tests in a child, compare by name, write the verdict."""
    here = Path(__file__).resolve().parent
    expected = json.loads((here / "expected.json").read_text("utf-8"))
    if expected["runner"] == "pytest" and importlib.util.find_spec("pytest") is None:
        sys.stdout.write(f"no verdict: {sys.executable} has no pytest\n")
        return NO_VERDICT
    with tempfile.TemporaryDirectory() as scratch:
        report = _run_child(here, Path(scratch), expected["timeout_s"])
    passed = {name for name, outcome in report["outcomes"].items() if outcome == "passed"}
    still_failing = sorted(set(expected["failing"]) - passed)
    broken = sorted(set(expected["passing"]) - passed)
    report |= {"still_failing": still_failing, "broken": broken}
    _say(report, fixed=len(expected["failing"]) - len(still_failing), of=len(expected["failing"]))
    LOGS.mkdir(parents=True, exist_ok=True)
    (LOGS / "report.json").write_text(json.dumps(report), "utf-8")
    (LOGS / "reward.txt").write_text("0\n" if still_failing or broken else "1\n", "utf-8")
    return 0


def _run_child(here: Path, scratch: Path, timeout_s: float) -> dict[str, Any]:
    results = scratch / "results.json"
    output = scratch / "output"
    command = [sys.executable, "-s", "-B", str(Path(__file__).resolve()), str(results)]
    env = {
        "PATH": os.defpath,
        "HOME": str(scratch),
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "PYTHONHASHSEED": "0",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    shutil.copytree(here / "pristine", scratch / "repo")
    with output.open("wb") as sink:
        child = subprocess.Popen(command, env=env, stdout=sink, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            sys.stdout.write(f"the tests did not end within {timeout_s:g} s\n")
        finally:
            _kill(child)
    with output.open("rb") as printed:
        printed.seek(max(0, output.stat().st_size - TAIL_BYTES))
        sys.stdout.write(printed.read().decode("utf-8", "replace"))
    try:
        return dict(json.loads(results.read_text("utf-8")))
    except (OSError, ValueError):
        return {"outcomes": {}, "messages": {}}


def _kill(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _say(report: dict[str, Any], *, fixed: int, of: int) -> None:
    sys.stdout.write(f"\n{fixed} of {of} failing tests pass now\n")
    for title, names in (("still failing", report["still_failing"]), ("newly failing", report["broken"])):
        for name in names[:20]:
            sys.stdout.write(f"{title}: {name}\n")
        if len(names) > 20:
            sys.stdout.write(f"{title}: {len(names) - 20} more\n")


def child(results: Path) -> None:
    """Run the tests in this process and leave every outcome by name in ``results``."""
    here = Path(__file__).resolve().parent
    expected = json.loads((here / "expected.json").read_text("utf-8"))
    repo = results.parent / "repo"
    os.chdir(repo)
    paths = [str(Path(expected["root"]) / entry) for entry in expected["path"]]
    del sys.path[0]  # this file's folder
    run = _run_pytest if expected["runner"] == "pytest" else _run_unittest
    outcomes, messages = run(repo, expected["tests"], paths)
    messages = {name: text[:MESSAGE_CHARS] for name, text in messages.items()}
    results.write_text(json.dumps({"outcomes": outcomes, "messages": messages}), "utf-8")


def _run_pytest(repo: Path, tests: list[str], paths: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    import pytest

    recorder = _Recorder()
    sys.path[:0] = paths
    options = ["-q", "--color=no", "--tb=short", "-p", "no:cacheprovider", "-c", os.devnull]
    pytest.main([*options, f"--rootdir={repo}", f"--confcutdir={repo}", *tests], plugins=[recorder])
    return recorder.outcomes, recorder.messages


class _Recorder:
    """A pytest plugin: what became of each test. Hooks and attributes are those that pytest 7 to 9 share."""

    def __init__(self) -> None:
        self.outcomes: dict[str, str] = {}
        self.messages: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        """One phase of one test: a failed setup or teardown fails it."""
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[report.nodeid] = "failed" if "failed" in self._seen(report) else report.outcome
        if report.outcome == "failed":
            self.messages.setdefault(report.nodeid, _crash(report))

    def pytest_collectreport(self, report: Any) -> None:
        """A file that cannot be imported."""
        if report.outcome == "failed":
            self.messages.setdefault(report.nodeid, _crash(report))

    def _seen(self, report: Any) -> tuple[str, str]:
        return self.outcomes.get(report.nodeid, ""), report.outcome


def _crash(report: Any) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash is not None else report.longrepr)


def _run_unittest(repo: Path, tests: list[str], paths: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    result = _Result()
    sys.path[:0] = paths
    for folder in tests:
        unittest.defaultTestLoader.discover(str(repo / folder), top_level_dir=str(repo)).run(result)
    return result.outcomes, result.messages


class _Result(unittest.TestResult):
    def __init__(self) -> None:
        super().__init__()
        self.outcomes: dict[str, str] = {}
        self.messages: dict[str, str] = {}

    def addSuccess(self, test: unittest.TestCase) -> None:
        self.outcomes.setdefault(test.id(), "passed")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self.outcomes[test.id()] = "skipped"

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        self.outcomes[test.id()] = "failed"
        self.messages[test.id()] = f"{err[0].__name__}: {err[1]}"

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        self.addFailure(test, err)

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        if err is not None:
            self.addFailure(test, err)

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:
        self.outcomes[test.id()] = "failed"

    def addExpectedFailure(self, test: unittest.TestCase, err: Any) -> None:
        self.outcomes[test.id()] = "skipped"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        child(Path(sys.argv[1]))
    else:
        sys.exit(main())
