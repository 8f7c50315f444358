"""Commands: output, exit code, input, syntax, length, and many at the same time."""

from __future__ import annotations

import asyncio
import base64
import hashlib

from rayroll.errors import CallerError, ProtocolError, SandboxLostError
from rayroll.runner.protocol import FrameType, Tag, decode_fields, encode_fields
from rayroll.testing.conformance._lab import Lab
from rayroll.testing.conformance._registry import check, expect, same
from rayroll.testing.conformance._scripts import SCRIPTS
from rayroll.testing.conformance._streams import Rewriting

QUIET_S = 65
"""A client library's usual read timeout is 60 s."""


@check()
async def output_and_exit_code_are_the_commands_own(lab: Lab) -> None:
    """What a command prints and the code it ends with arrive as they are."""
    r = await lab.box.sh("echo out; echo err >&2; exit 7")
    same(r.output, "out\nerr\n", "the output")
    same(r.exit_code, 7, "the exit code")
    expect(not r.timed_out and not r.truncated and r.limit == "", "nothing else is claimed about it", result=r)


@check(source="B06")
async def exit_codes_are_those_that_shells_say(lab: Lab) -> None:
    """Signals are 128+n, 126 and 127 mean what they always do, and 300 becomes 44: the same on every substrate."""
    wanted = {
        "kill -9 $$": 137,
        "sh -c 'kill -SEGV $$'": 139,
        "kill -TERM $$": 143,
        "nosuchcmd-rr": 127,
        "/etc/passwd": 126,
        "./no/such/file": 127,
        "exit 300": 44,
        "exit 255": 255,
        "true": 0,
        "false": 1,
        "sh -c 'exit 3'": 3,
        "false | true": 0,
    }
    results = await asyncio.gather(*(lab.box.sh(script) for script in wanted))
    codes = {script: r.exit_code for script, r in zip(wanted, results, strict=True)}
    same(codes, wanted, "the exit code by script")


@check(source="B06")
async def a_program_that_cannot_be_executed_is_the_commands_failure(lab: Lab) -> None:
    """Without a shell, too: 127 for a program that is not there, 126 for a file that is none."""
    missing = await lab.box.client.exec(argv=["/no/such/program"])
    await lab.box.client.write_file(lab.box.path("text"), b"not a program", mode=0o644)
    refused = await lab.box.client.exec(argv=[lab.box.path("text")])
    same((missing.exit_code, refused.exit_code), (127, 126), "the exit codes")


@check(source="B06")
async def a_result_without_an_exit_code_is_an_error_and_not_a_zero(lab: Lab) -> None:
    """If the code is lost on the way, the caller hears of it; a killed test run must not pass."""

    def lose_code(type: int, payload: bytes) -> bytes:
        if type != FrameType.RESULT:
            return payload
        fields = decode_fields(payload)
        fields.pop(Tag.EXIT_CODE, None)
        return encode_fields(dict(fields))

    async with lab.fresh(wrap=lambda channel: Rewriting(channel, lose_code)) as live:
        try:
            r = await live.sh("echo passed")
        except ProtocolError:
            return
    expect(False, "a result without an exit code raises", result=r)


@check(source="B06")
async def a_sandbox_that_ends_during_a_command_raises(lab: Lab) -> None:
    """The command of a destroyed sandbox has no result: the caller gets SandboxLostError, not a code."""
    async with lab.fresh() as live:
        command = asyncio.create_task(live.sh("echo started; sleep 60"))
        await live.sh("true")
        await lab.substrate.destroy(live.ref)
        try:
            r = await command
        except SandboxLostError:
            return
    expect(False, "the command of a destroyed sandbox raises SandboxLostError", result=r)


@check(source="B03")
async def a_command_that_waits_for_input_is_at_its_end(lab: Lab) -> None:
    """``cat`` and ``read`` see the end of the file at once, and swallow nothing of the next command."""
    cat = await lab.box.sh("cat", timeout_s=10)
    same((cat.output, cat.exit_code), ("", 0), "what cat does")
    read = await lab.box.sh("read x; echo rc=$?", timeout_s=10)
    same(read.output, "rc=1\n", "what read says")
    same((await lab.box.sh("echo alive")).output, "alive\n", "what the next command prints")


@check(source="B03", tools=("python3",))
async def pythons_input_raises_at_once(lab: Lab) -> None:
    """``input()`` is an EOFError, not a wait."""
    r = await lab.box.sh("python3 -c 'input()'", timeout_s=10)
    expect("EOFError" in r.output and r.exit_code == 1, "it ends with EOFError and code 1", result=r)


@check(source="B03", tools=("git",))
async def git_commit_without_a_message_opens_no_editor(lab: Lab) -> None:
    """It fails by itself; no editor waits for keys that nobody will press."""
    r = await lab.box.sh(
        f"mkdir {lab.box.path('repo')}; cd {lab.box.path('repo')}; git init -q . 2>/dev/null; git config user.name n; "
        "git config user.email e@example.org; echo x > f; git add f; git commit",
        timeout_s=10,
        carry=False,
    )
    expect(r.exit_code not in (0, None) and not r.timed_out, "it fails, and by itself", result=r)
    same(await lab.box.running("COMMIT_EDITMSG"), 0, "the number of editors that hold the message")


@check(source="B03")
async def no_terminal_is_there(lab: Lab) -> None:
    """A program that asks for a terminal learns that there is none, on every stream and by name."""
    r = await lab.box.sh("for n in 0 1 2; do [ -t $n ] && echo $n; done; (: </dev/tty) 2>/dev/null && echo tty; true")
    same(r.output, "", "the streams that are terminals")


@check()
async def standard_input_reaches_the_command_whole(lab: Lab) -> None:
    """Bytes given as input arrive unchanged, then the end; also where nobody reads them."""
    data = bytes(range(256)) * 4096
    r = await lab.box.sh("sha256sum || shasum -a 256", stdin=data)
    same(r.output.split()[:1], [hashlib.sha256(data).hexdigest()], "the digest of 1 MiB of input")
    same((await lab.box.sh("echo unread", stdin=data)).output, "unread\n", "the output of a command that reads nothing")


@check(source="B08")
async def a_command_prints_exactly_what_its_shell_prints(lab: Lab) -> None:
    """Some fifty scripts run through us and through the shell alone: same bytes, same code, nothing of a wrapper.

    Heredocs, comments, a last backslash, an empty command, ``set -x``, traps, ``exec``, job control, bad syntax.
    """
    has_bash = lab.box.client.greeting.shell.endswith("/bash")
    shell = "bash" if has_bash else "sh"
    for name, script in SCRIPTS.items():
        ours, plain = await asyncio.gather(
            lab.box.sh(script, cwd=lab.box.folder),
            lab.box.client.exec(argv=[shell, "-c", script], cwd=lab.box.folder, timeout_s=30),
        )
        same(ours.exit_code, plain.exit_code, f"the exit code of {name!r}", script=script, output=ours.output)
        # Other shells than bash get the script by `eval`, and say so in their error messages.
        if has_bash or not name.startswith("bad"):
            same(ours.output, plain.output, f"the output of {name!r}", script=script)
        same((await lab.box.sh("echo next")).output, "next\n", f"what the command after {name!r} prints")


@check(source="B08")
async def a_heredoc_may_be_the_last_line(lab: Lab) -> None:
    """Nothing is glued behind its terminator, so its end is seen; a comment or a backslash at the end harms nothing."""
    wanted = {
        "cat <<'EOF'\nline 1\n$HOME `x`\nEOF": "line 1\n$HOME `x`\n",
        "echo hi # note": "hi\n",
        "sleep 0.1 &": "",
        "": "",
        "# only a comment": "",
        "printf abc": "abc",
        "\n\n": "",
    }
    for script, output in wanted.items():
        r = await lab.box.sh(script)
        same((r.output, r.exit_code), (output, 0), f"what {script!r} does")
        same((await lab.box.sh("echo next")).output, "next\n", f"what the command after {script!r} prints")


@check(source="B09")
async def bad_syntax_fails_at_once(lab: Lab) -> None:
    """An open quote or an unfinished ``if`` is the shell's own error with code 2, and the next command is clean."""
    for script in ("echo 'oops", "if true; then echo x", 'echo "$(echo', "case x in", "{ echo y"):
        r = await lab.box.sh(script)
        expect(r.exit_code == 2 and r.output and not r.timed_out, "it is a syntax error", script=script, result=r)
        same((await lab.box.sh("echo next")).output, "next\n", f"what the command after {script!r} prints")


@check(source="B09")
async def an_unfinished_heredoc_does_not_wait(lab: Lab) -> None:
    """Without its terminator it ends where the script ends."""
    r = await lab.box.sh("cat - <<'EOF'\nbody")
    expect("body" in r.output or r.exit_code != 0, "it runs with what is there, or fails", result=r)
    expect(not r.timed_out, "it does not wait for more", result=r)
    same((await lab.box.sh("echo next")).output, "next\n", "what the next command prints")


@check(source="B09", tools=("awk",))
async def nested_quotes_are_not_refused(lab: Lab) -> None:
    """Valid text that a checker of our own might refuse runs as it is."""
    r = await lab.box.sh("""x=$(echo "a b" | awk '{ printf "%s|\\"%s\\"", $2, $1 }'); echo "$x" '"' "'" """)
    same(r.output, 'b|"a" " \'\n', "the output")


@check(source="B10")
async def a_command_may_be_a_megabyte_long(lab: Lab) -> None:
    """Far above what Linux takes as one argument (128 KiB): a heredoc of 200 kB and one of 1 MB arrive whole."""
    for size in (100_000, 131_000, 131_072, 200_000, 1_000_000):
        body = base64.b64encode(hashlib.sha512(str(size).encode()).digest() * (size // 64))[:size].decode()
        wanted = hashlib.sha256(body.encode() + b"\n").hexdigest()
        r = await lab.box.sh(f"cat > big <<'EOF'\n{body}\nEOF\nsha256sum < big", cwd=lab.box.folder)
        same(r.output.split()[:1], [wanted], f"the digest of a heredoc of {size} bytes", exit_code=r.exit_code)


@check(source="B10")
async def a_huge_variable_works_or_is_refused_by_name(lab: Lab) -> None:
    """Linux caps ``NAME=value`` at 131,071 bytes: above that the caller learns which one is too long."""
    r = await lab.box.sh('printf %s "$BIG" | wc -c', env={"BIG": "x" * 131_000})
    same(int(r.output), 131_000, "the length of a value that Linux takes")
    try:
        r = await lab.box.sh('printf %s "$BIG" | wc -c', env={"BIG": "x" * 140_000})
    except CallerError as error:
        expect("BIG" in str(error) and "14000" in str(error), "the error names the variable and its size", error=error)
    else:
        same(int(r.output), 140_000, "the length of the value")


@check(source="B10")
async def a_command_with_too_many_arguments_is_the_callers_error(lab: Lab) -> None:
    """More than the kernel takes in all is refused at once and not retried as if the machine had failed."""
    try:
        r = await lab.box.client.exec(argv=["echo", *["x" * 100_000] * 60])
    except CallerError:
        return
    expect(len(r.output) > 6_000_000 or r.exit_code in (126, 127), "it runs or is refused", code=r.exit_code)


@check(source="B11")
async def twenty_commands_at_once_do_not_mix(lab: Lab) -> None:
    """Each of 20 concurrent commands gets its own lines and its own code."""

    async def one(i: int) -> None:
        r = await lab.box.sh(f"for k in 1 2 3; do echo job-{i}; sleep 0.05; done; exit {i}")
        same((r.output, r.exit_code), (f"job-{i}\n" * 3, i), f"the result of job {i}")

    async with asyncio.TaskGroup() as group:
        for i in range(20):
            group.create_task(one(i))


@check()
async def a_hundred_commands_at_once_are_all_answered(lab: Lab) -> None:
    """More than run at the same time: the rest waits in a queue, and the wait is not the command's time."""
    results = await asyncio.gather(*(lab.box.sh(f"echo {i}; sleep 0.02", carry=False) for i in range(100)))
    same([r.output for r in results], [f"{i}\n" for i in range(100)], "the outputs")


@check(source="B19", begins_early=True, is_slow=True, limit_s=QUIET_S + 60)
async def a_command_may_be_silent_for_more_than_a_minute(lab: Lab) -> None:
    """``sleep 65; echo done``: no client library's read timeout of 60 s ends it."""
    async with lab.fresh() as live:
        r = await live.sh(f"sleep {QUIET_S}; echo done", timeout_s=QUIET_S + 25)
    same((r.output, r.exit_code, r.timed_out), ("done\n", 0, False), "the result")
