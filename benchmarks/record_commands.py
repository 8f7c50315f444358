#!/usr/bin/env python3
"""Sessions with commands of many kinds over the packs of `envs/`, recorded: what `rayroll traces predict` is judged on.

A session is a rollout of a task: look, search, read, run scripts and tests, edit, test again, submit. Which commands in
which words is drawn for each session by the seed, the task and the sample, so that sessions of one task differ as those
of two agents do; half of the sessions are a little hasty, and half have one habit of running tests. Nothing was chosen
by how long it takes. What runs where: the same as in any rollout.

    python benchmarks/record_commands.py --out commands.jsonl.zst --samples 2

Prints a table on standard error, and one JSON line, last, on standard output.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from _facts import facts
from rich.console import Console

from rayroll.executor import Executor, PlayConfig
from rayroll.policies.bugfix import bugfix_script
from rayroll.record import to_line
from rayroll.tasks import load_pack
from rayroll.types import Act, Rollout, Task, Turn

PACKS = ("repo_fix", "terminal", "hello_shell")

console = Console(stderr=True, width=None if sys.stderr.isatty() else 120)


class Mixed:
    """Plays a script that is drawn for each rollout; equal seeds, tasks and samples give equal commands."""

    def __init__(self, tasks: Sequence[Task], seed: int) -> None:
        self._tasks = {task.id: task for task in tasks}
        self._seed = seed
        self._scripts: dict[tuple[str, int], list[str]] = {}

    async def act(self, turn: Turn) -> Act:
        """The script's next command, and after the last one ``submit``."""
        key = (turn.task_id, turn.sample_index)
        if key not in self._scripts:
            draw = random.Random(f"{self._seed}/{turn.task_id}/{turn.sample_index}")
            self._scripts[key] = list(script(self._tasks[turn.task_id], draw))
        commands = self._scripts[key]
        return Act(commands[turn.index]) if turn.index < len(commands) else Act(submit=True)


def script(task: Task, draw: random.Random) -> Iterator[str]:
    """The commands of one session."""
    if task.solution is not None and "fix.json" in task.solution.names():
        yield from repair(task, draw)
    else:
        yield from chores(task, draw)


def repair(task: Task, draw: random.Random) -> Iterator[str]:
    """Of a task of ``repo_fix``."""
    assert task.solution is not None
    fix = json.loads(task.solution.read("fix.json"))
    tests = Tests(json.loads(task.tests.read("expected.json")), draw)
    file, line = shlex.quote(fix["file"]), int(fix["line"])
    edit = bugfix_script(task, 4)[2]
    hurry = draw.random() < 0.5
    kinds: list[tuple[float, Callable[[], str]]] = [
        (2.0, lambda: looking(draw)),
        (2.0, lambda: searching(draw, file)),
        (3.0, lambda: reading(draw, file, line)),
        (1.5, lambda: scripting(draw, file)),
        (0.5, lambda: housework(draw, file)),
        (1.5 if hurry else 3.0, tests.some),
    ]
    weights = [weight for weight, _ in kinds]
    actions = draw.randint(10, 20) if hurry else draw.randint(16, 40)
    edit_at = draw.randint(actions // 3, actions - 3)
    for index in range(actions):
        if index == edit_at:
            yield edit
            yield tests.failing()
        else:
            yield draw.choices([kind for _, kind in kinds], weights)[0]()
    yield tests.all()


def chores(task: Task, draw: random.Random) -> Iterator[str]:
    """Of a task of everyday work: a look around between the known solution and what it left."""
    for _ in range(draw.randint(3, 10)):
        yield draw.choice([looking(draw), housework(draw, "."), "env | sort | head", "date && whoami && uname -a"])
    if task.solution is not None:
        yield f"cat > /tmp/solve.sh <<'RAYROLL_EOF'\n{task.solution.read('solve.sh').decode()}\nRAYROLL_EOF"
        yield "sh /tmp/solve.sh"
    for _ in range(draw.randint(2, 5)):
        yield looking(draw)


class Tests:
    """How a session runs a package's tests: some in many words, some always in the same."""

    def __init__(self, expected: dict[str, Any], draw: random.Random) -> None:
        self.draw = draw
        self.is_pytest = expected["runner"] == "pytest"
        self.paths: list[str] = expected["tests"]
        self.ids: list[str] = expected["failing"] + draw.sample(expected["passing"], min(12, len(expected["passing"])))
        self.failing_ids: list[str] = expected["failing"]
        self.path = ":".join(part or "." for part in expected["path"])
        self.habit = draw.randrange(5)
        self.is_steady = draw.random() < 0.5

    def all(self) -> str:
        return self._run(" ".join(map(shlex.quote, self.paths)), self.draw.choice(["-q", "-q -x", "", "-q --tb=short"]))

    def failing(self) -> str:
        return self._run(shlex.quote(self.failing_ids[0]), "-q")

    def some(self) -> str:
        draw = self.draw
        one = shlex.quote(draw.choice(self.ids))
        if not self.is_pytest:
            return draw.choice([self.all, lambda: self._run(one, ""), lambda: self._run(one, "-v")])()
        file = one.split("::")[0].strip("'")
        word = draw.choice(self.ids).rpartition("::")[2].partition("[")[0].removeprefix("test_").partition("_")[0]
        forms: list[tuple[float, Callable[[], str]]] = [
            (2, self.all),
            (3, lambda: self._run(shlex.quote(file), draw.choice(["-q", "-q -x", "-v"]))),
            (2, lambda: self._run(one, draw.choice(["-q", "-vv", "-q --tb=long"]))),
            (1, lambda: self._run(" ".join(map(shlex.quote, self.paths)), f"-q -k {shlex.quote(word)}")),
            (1, lambda: self._run(shlex.quote(file), "--collect-only -q")),
            (0.5, lambda: self._run(" ".join(map(shlex.quote, self.paths)), "-q --durations=5")),
            (0.3, lambda: f"for i in 1 2 3; do {self._run(one, '-q')}; done"),
        ]
        return draw.choices([form for _, form in forms], [weight for weight, _ in forms])[0]()

    def _run(self, what: str, flags: str) -> str:
        if self.is_pytest:
            words = f"python3 -m pytest -p no:cacheprovider {flags} {what}".replace("  ", " ")
        else:
            is_folder = what in self.paths
            where = f"discover -t . -s {what}" if is_folder else what
            words = f"python3 -m unittest {flags.replace('-q -x', '-q').replace('--tb=short', '')} {where}"
        words = f"PYTHONPATH={self.path} {words}"
        habit = self.habit if self.is_steady else self.draw.randrange(5)
        return (
            words,
            f"{words} 2>&1 | tail -n {self.draw.choice([5, 20, 40])}",
            f"cd /app && {words}",
            f"timeout 120 env {words} > /tmp/out.txt 2>&1; tail -n 15 /tmp/out.txt",
            f"{words} || echo failed",
        )[habit]


def looking(draw: random.Random) -> str:
    return draw.choice(
        (
            *("ls", "ls -la", "pwd && ls", "ls -R . | head -n 50", "find . -name '*.py' | sort | head -n 60"),
            *("find . -type f | wc -l", "du -sh .", "head -n 40 README* 2>/dev/null || true", "cat README* | wc -w"),
            *("git status --short 2>&1 | head", "git diff --stat 2>&1 | tail -n 3", "python3 --version"),
            f"find . -name '*.py' -size +{draw.randint(1, 20)}k -exec wc -l {{}} +",
        )
    )


def searching(draw: random.Random, file: str) -> str:
    word = draw.choice(["import", "def ", "class ", "return", "raise", "self", "None", "TODO", "lambda", "yield"])
    folder = file.strip("'").rpartition("/")[0] or "."
    return draw.choice(
        (
            f"grep -n {shlex.quote(word)} {file}",
            f"grep -rn {shlex.quote(word)} {folder} --include='*.py' | head -n {draw.randint(5, 60)}",
            f"grep -rnc {shlex.quote(word)} . --include='*.py' | sort -t: -k2 -n | tail",
            f"grep -rl {shlex.quote(word)} . | xargs wc -l | sort -n | tail -n 5",
            f"awk '/{word.strip()}/ {{n++}} END {{print n}}' {file}",
        )
    )


def reading(draw: random.Random, file: str, line: int) -> str:
    first = max(1, line - draw.randint(0, 60))
    return draw.choice(
        (
            f"sed -n '{first},{first + draw.choice([20, 40, 80, 200])}p' {file}",
            f"cat {file}",
            f"cat -n {file} | head -n {draw.choice([50, 100, 200])}",
            f"awk 'NR>={first} && NR<={first + 40}' {file}",
            f"nl -ba {file} | sed -n '{first},{first + 30}p'",
            f"tail -n {draw.choice([20, 60])} {file} && wc -l {file}",
        )
    )


def scripting(draw: random.Random, file: str) -> str:
    many = draw.choice([10_000, 100_000, 1_000_000])
    return draw.choice(
        (
            f"python3 -c 'import ast,sys; print(len(ast.parse(open(sys.argv[1]).read()).body))' {file}",
            f"python3 -m py_compile {file}",
            "python3 -m compileall -q -f . >/dev/null; echo $?",
            f"python3 -m tokenize {file} | wc -l",
            f"python3 - <<'EOF'\nimport re, pathlib\ntext = pathlib.Path({file!r}).read_text()\n"
            "print(len(re.findall(r'\\w+', text)))\nEOF",
            f"python3 -c 'print(sum(i * i for i in range({many})))'",
            f"python3 -m timeit -n {draw.choice([10, 100])} -r 3 'sorted(range(1000))'",
            f'python3 -c "import json; print(json.dumps([list(range(50))] * {many // 1000})[:80])"',
            "python3 -c 'import asyncio, http.client, unittest, sqlite3; print(1)'",
        )
    )


def housework(draw: random.Random, file: str) -> str:
    return draw.choice(
        (
            "tar czf /tmp/all.tgz . && ls -l /tmp/all.tgz",
            "rm -rf /tmp/copy && cp -r . /tmp/copy && diff -rq . /tmp/copy",
            "find . -type f -print0 | xargs -0 sha256sum | sort | sha256sum",
            f"cp -r {file} /tmp/kept && diff -r {file} /tmp/kept; rm -rf /tmp/kept",
            "find . -name '__pycache__' -prune -exec rm -rf {} +",
            "find . -type f -exec cat {} + | gzip -9 | wc -c",
            f"seq {draw.choice([1000, 100_000, 500_000])} | sort -R | sort -n | tail -n 1",
        )
    )


async def play(options: argparse.Namespace, tasks: Sequence[Task]) -> list[Rollout]:
    """All rollouts, in the order in which they finished, which is the order of the file."""
    config = PlayConfig(max_steps=60)
    found: list[Rollout] = []
    async with Executor(options.substrate, run_id="commands") as executor:
        run = executor.submit(
            tasks,
            Mixed(tasks, options.seed),
            samples_per_task=options.samples,
            max_in_flight=options.concurrency,
            config=config,
            seed=options.seed,
            labels={"policy": "mixed"},
        )
        async for rollout in run.rollouts():
            found.append(rollout)
            if len(found) % 10 == 0:
                console.print(f"{len(found)} of {len(tasks) * options.samples}")
    return found


def main(argv: Sequence[str]) -> int:
    """Play, write, and say what there is."""
    from rayroll.traces._streams import open_write

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = parser.add_argument
    add("--out", type=Path, default=Path("commands.jsonl.zst"), help="rollouts, .jsonl or .jsonl.zst")
    add("--pack", action="append", help=f"repeatable {list(PACKS)}")
    add("--substrate", default="local")
    add("--samples", type=int, default=2, help="sessions of each task [2]")
    add("--tasks", type=int, help="only so many of each pack")
    add("--concurrency", type=int, default=1, help="sessions at a time [1]")
    add("--seed", type=int, default=0)
    add("--smoke", action="store_true", help="one session of one little task: does it work?")
    options = parser.parse_args(argv)
    if options.smoke:
        options.pack, options.samples, options.tasks = ["hello_shell"], 1, 1
    tasks = [task for pack in options.pack or PACKS for task in load_pack(pack).tasks[: options.tasks]]
    random.Random(options.seed).shuffle(tasks)  # so that earlier and later sessions are not of other packages
    began_s = time.monotonic()
    rollouts = [rollout for rollout in asyncio.run(play(options, tasks)) if rollout.valid]
    with open_write(options.out) as file:
        for rollout in rollouts:
            file.write(to_line(rollout))
    steps = [step for rollout in rollouts for step in rollout.steps if step.act.command]
    line = {
        "out": options.out.name,
        "tasks": len(tasks),
        "sessions": len(rollouts),
        "commands": len(steps),
        "different": len({step.act.command for step in steps}),
        "exit_0": sum(step.exit_code == 0 for step in steps),
        "run_s": round(sum(step.timing.run_ns for step in steps) / 1e9, 1),
        "wall_s": round(time.monotonic() - began_s, 1),
        "bytes": options.out.stat().st_size,
        **facts(),
    }
    print(json.dumps(line))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
