"""What a command prints and ends with, in each of the shells that images come with."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest
from runner.live import sandbox

from rayroll.errors import CallerError, SandboxFileError, TaskError

CODES = {
    "true": 0,
    "exit 3": 3,
    "exit 300": 44,
    "kill -9 $$": 137,
    "sh -c 'kill -SEGV $$'": 139,
    "kill -TERM $$": 143,
    "kill -HUP $$": 129,
    "nosuchcmd-rr": 127,
    "/etc/passwd": 126,
    "/no/such/file": 127,
    "set -e; false; true": 1,
    "exec true": 0,
    "exec sh -c 'exit 5'": 5,
    "sleep 300 & exit 1": 1,
}
OUTPUTS = {  # each with code 0
    "cat": "",
    "read x; echo rc=$?": "rc=1\n",
    "cat <<EOF\nx $((1+1))\nEOF": "x 2\n",
    "cat <<'EOF'\n$x `y` \\\nEOF": "$x `y` \\\n",
    "echo hi # note": "hi\n",
    "sleep 0.1 &": "",
    "": "",
    "# only a comment": "",
    "\n\n": "",
    "printf abc": "abc",
    "echo $#": "0\n",
    "set -- a b; echo $# $1": "2 a\n",
    "for i in 1 2 3; do echo o$i; echo e$i >&2; done": "o1\ne1\no2\ne2\no3\ne3\n",
    "set -x; echo hi": "+ echo hi\nhi\n",
    "exec >&- 2>&-; echo lost; exit 0": "",
    "cd /; exec 3>&1; echo x >&3; exec 3>&-": "x\n",
    "trap 'echo bye' EXIT; echo hi": "hi\nbye\n",
    "set -C; echo y": "y\n",
    "(exit 5); echo $?": "5\n",
}
BAD_SYNTAX = ("echo 'oops", "if true; then echo x", "echo (", "case x in", "done", 'echo "$(echo')


@pytest.mark.parametrize("script", CODES)
async def test_codes_are_those_that_shells_say(shell: str, script: str) -> None:
    async with sandbox(shell=shell) as box:
        assert (await box.sh(script)).exit_code == CODES[script]
        assert (await box.sh("echo next")).output == "next\n"


async def test_nothing_of_ours_is_in_the_output(shell: str) -> None:
    async with sandbox(shell=shell) as box:
        for script, output in OUTPUTS.items():
            r = await box.sh(script)
            assert (script, r.output, r.exit_code) == (script, output, 0)
            assert (await box.sh("echo next")).output == "next\n"


async def test_bad_syntax_fails_at_once_and_the_next_command_is_clean(shell: str) -> None:
    async with sandbox(shell=shell) as box:
        for script in BAD_SYNTAX:
            r = await box.sh(script)
            assert (script, r.exit_code) == (script, 2)
            assert r.output and not r.timed_out
            assert (await box.sh("echo next")).output == "next\n"


@pytest.mark.usefixtures("namespaces")
async def test_bash_prints_just_what_bash_c_prints() -> None:
    scripts = [*CODES, *OUTPUTS, *BAD_SYNTAX, "echo $0 $SHLVL $BASH_EXECUTION_STRING", "shopt; set +o", "declare -F"]
    # `bash -c` becomes its last command where no trap is set; ours stays, and reports the signal its child died of.
    scripts = [script for script in scripts if "sleep" not in script and "SEGV" not in script]
    async with sandbox() as box:
        for script in scripts:
            ours = await box.sh(script, cwd="/tmp")
            plain = await box.client.exec(argv=["bash", "-c", script], cwd="/tmp")
            assert (script, ours.raw, ours.exit_code) == (script, plain.raw, plain.exit_code)


async def test_a_script_may_be_a_megabyte_long(shell: str) -> None:
    async with sandbox(shell=shell) as box:
        for size in (131_000, 131_072, 1_000_000):
            r = await box.sh(f"cat > /tmp/big <<'EOF'\n{'x' * size}\nEOF\nexit 3")
            assert (r.exit_code, r.output) == (3, "")
            written = (box.folder / "big").read_bytes()
            assert hashlib.sha256(written).hexdigest() == hashlib.sha256(b"x" * size + b"\n").hexdigest()
            assert r.state_saved


async def test_input_arrives_whole_and_ends(shell: str) -> None:
    data = bytes(range(256)) * 2000
    async with sandbox(shell=shell) as box:
        assert (await box.sh("cat", stdin=data, output_cap_bytes=1 << 20)).raw == data
        assert (await box.sh("echo unread", stdin=data)).output == "unread\n"


@pytest.mark.usefixtures("namespaces")
async def test_python_and_terminals_find_no_input() -> None:
    async with sandbox() as box:
        r = await box.sh("python3 -c 'input()'")
        assert (r.exit_code, "EOFError" in r.output) == (1, True)
        assert (await box.sh("tty; [ -t 0 ] || echo none; : < /dev/tty")).output.startswith("not a tty\nnone\n")


@pytest.mark.usefixtures("namespaces")
async def test_a_program_without_a_shell() -> None:
    async with sandbox() as box:
        (box.folder / "text").write_text("no program")
        (box.folder / "text").chmod(0o755)
        cases = {
            ("/bin/echo", "a b"): (0, "a b\n"),
            ("echo", "x"): (0, "x\n"),
            ("no-such-rr",): (127, None),
            ("/tmp/text",): (126, None),
        }
        for argv, (code, output) in cases.items():
            r = await box.client.exec(argv=argv)
            assert (argv, r.exit_code) == (argv, code)
            assert output is None or r.output == output
        r = await box.client.exec(argv=["here"], env={"PATH": "/nowhere:/tmp/bin"})
        assert r.exit_code == 127
        await box.client.write_file("/tmp/bin/here", b"#!/bin/sh\necho found\n", mode=0o755)
        assert (await box.client.exec(argv=["here"], env={"PATH": "/nowhere:/tmp/bin"})).output == "found\n"


@pytest.mark.usefixtures("namespaces")
async def test_what_cannot_work_is_told_apart() -> None:
    async with sandbox() as box:
        with pytest.raises(SandboxFileError, match="working directory: No such file or directory: /no/such"):
            await box.sh("pwd", cwd="/no/such")
        with pytest.raises(SandboxFileError, match="Not a directory"):
            await box.sh("pwd", cwd="/etc/passwd")
        with pytest.raises(CallerError, match="no such user"):
            await box.sh("id", user="nobody-rr")
        with pytest.raises(CallerError, match=r"BIG.*140004"):
            await box.sh("true", env={"BIG": "x" * 140_000})
        with pytest.raises(CallerError, match="longer than the kernel allows"):
            await box.client.exec(argv=["echo", *["x" * 100_000] * 60])
        with pytest.raises(CallerError, match="either a script or argv"):
            await box.client.exec()
        assert (await box.sh("echo alive")).output == "alive\n"


NO_SHELL = ("--ro-bind", "/dev/null", "/usr/bin/bash", "--ro-bind", "/dev/null", "/usr/bin/dash")


@pytest.mark.usefixtures("namespaces")
async def test_an_image_without_a_shell_is_the_tasks_fault() -> None:
    async with sandbox(bwrap=NO_SHELL) as box:
        assert box.client.greeting.shell == ""
        with pytest.raises(TaskError, match="no shell"):
            await box.sh("echo hi")
        assert (await box.client.exec(argv=["/bin/echo", "hi"])).output == "hi\n"


@pytest.mark.usefixtures("namespaces")
async def test_a_shell_that_is_gone_since_is_the_commands_failure(tmp_path: Path) -> None:
    shutil.copy("/usr/bin/busybox", tmp_path / "sh")
    async with sandbox(bwrap=[*NO_SHELL, "--bind", str(tmp_path), "/busybox"]) as box:
        assert box.client.greeting.shell == "/busybox/sh"
        assert (await box.sh("rm /busybox/sh; echo done")).output == "done\n"
        r = await box.sh("echo hi")
        assert (r.exit_code, r.output) == (127, "No such file or directory\n")
