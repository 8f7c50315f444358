"""Between commands: the directory and the exported variables go on, and no command can end the session."""

from __future__ import annotations

import asyncio

from rayroll.testing.conformance._lab import Lab
from rayroll.testing.conformance._registry import check, expect, same


@check(source="B07")
async def exit_does_not_end_the_session(lab: Lab) -> None:
    """``export K=v; cd /tmp; exit 7``: code 7, and the next command is in /tmp and knows K."""
    r = await lab.box.sh(f"export K=v; cd {lab.box.folder}; exit 7")
    same(r.exit_code, 7, "the exit code")
    expect(r.state_saved, "the result says that its state was saved")
    follow = await lab.box.sh('echo ok; pwd; echo "$K"')
    same(follow.output, f"ok\n{lab.box.folder}\nv\n", "what the next command prints")


@check(source="B07")
async def set_e_does_not_end_the_session(lab: Lab) -> None:
    """``set -e; false`` is code 1, and the option does not live on."""
    same((await lab.box.sh(f"cd {lab.box.folder}; set -e; false; echo no")).exit_code, 1, "the exit code")
    follow = await lab.box.sh("false; echo ok; pwd")
    same(follow.output, f"ok\n{lab.box.folder}\n", "what the next command prints")


@check(source="B07")
async def exec_does_not_end_the_session(lab: Lab) -> None:
    """``exec true`` replaces the shell: code 0, the result says that its state is lost, and the one before holds."""
    await lab.box.sh(f"cd {lab.box.folder}; export K=before")
    r = await lab.box.sh("export K=after; cd /; exec true")
    same(r.exit_code, 0, "the exit code")
    expect(not r.state_saved, "the result says that the state was lost")
    follow = await lab.box.sh('echo ok; pwd; echo "$K"')
    same(follow.output, f"ok\n{lab.box.folder}\nbefore\n", "what the next command prints")


@check(source="B07")
async def a_background_job_does_not_end_the_session(lab: Lab) -> None:
    """``sleep 300 & exit 1``: code 1 at once."""
    same((await lab.box.sh("sleep 300 & exit 1")).exit_code, 1, "the exit code")
    same((await lab.box.sh("echo ok")).output, "ok\n", "what the next command prints")


@check(source="B07")
async def a_deleted_directory_is_left_with_a_notice(lab: Lab) -> None:
    """The command after that runs in a parent that is still there, and the agent is told."""
    gone = lab.box.path("gone")
    r = await lab.box.sh(f"mkdir -p {gone}; cd {gone}; rmdir {gone}")
    same(r.exit_code, 0, "the exit code")
    follow = await lab.box.sh("echo ok; pwd")
    same(follow.exit_code, 0, "the next exit code")
    expect(follow.output.startswith("ok\n/"), "it runs in a directory that exists", output=follow.output)
    expect(follow.notice, "the agent is told", result=follow)
    same((await lab.box.sh("pwd")).notice, "", "the notice of the command after that")


@check(source="B07")
async def a_directory_without_permission_is_left_too(lab: Lab) -> None:
    """A tree removed or closed behind one's back is no reason to stop answering."""
    deep = lab.box.path("a/b/c")
    await lab.box.sh(f"mkdir -p {deep}; cd {deep}")
    await lab.box.sh(f"rm -rf {lab.box.path('a')}", cwd="/", carry=False)
    r = await lab.box.sh("echo ok; pwd")
    same((r.exit_code, r.output.splitlines()[0]), (0, "ok"), "the result")
    expect(lab.box.folder.startswith(r.output.splitlines()[1]), "the nearest parent was taken", output=r.output)


@check(source="B07")
async def a_killed_shell_does_not_end_the_session(lab: Lab) -> None:
    """KILL, SEGV, out of CPU time: the code says so, and the result is right about whether its state was saved."""
    deaths = (
        ("kill -9 $$", 137),
        ("kill -SEGV $$", 139),
        ("kill -9 0", 137),
        ("kill -TERM $$", 143),
        ("kill -XCPU $$", 152),
    )
    for script, code in deaths:
        await lab.box.sh(f"cd {lab.box.folder}; export K=before")
        r = await lab.box.sh(f"export K=after; {script}")
        same(r.exit_code, code, f"the code of {script!r}")
        follow = await lab.box.sh('pwd; echo "$K"')
        known = "after" if r.state_saved else "before"
        same(follow.output, f"{lab.box.folder}\n{known}\n", f"what the command after {script!r} prints")


@check(source="B07")
async def open_syntax_and_traps_do_not_end_the_session(lab: Lab) -> None:
    """An open quote, a trap that never returns to us, redefined words: the next command is an ordinary one."""
    await lab.box.sh(f"cd {lab.box.folder}")
    scripts = (
        "echo 'oops",
        "trap 'exit 3' EXIT",
        "trap '' EXIT",
        "trap : TERM; kill $$",
        "cd() { :; }; pwd() { echo /wrong; }; exit() { :; }; builtin() { :; }; command() { :; }",
        "alias echo=false; alias cd=false",
        "unset PATH HOME PWD",
        "PATH=",
        "exec 1>&- 2>&-",
        "exec 3>&- 210>&- 211>&- 213>&-",
        "umask 777",
        "ulimit -n 3",
        "ulimit -f 0",
        "set -o noexec",
        "set -o noclobber",
        "readonly PWD OLDPWD 2>/dev/null",
    )
    for script in scripts:
        r = await lab.box.sh(script)
        expect(not r.timed_out, "it ends", script=script, result=r)
        follow = await lab.box.sh("echo ok; pwd")
        same(follow.output, f"ok\n{lab.box.folder}\n", f"what the command after {script!r} prints")


@check()
async def exported_variables_go_on_and_others_do_not(lab: Lab) -> None:
    """Any value: spaces, quotes, newlines, bytes that are no text, nothing at all; unset is remembered, too."""
    await lab.box.sh(
        "export A='1 2' B=\"it's\" C='x\ny' D= E=\"$(printf 'caf\\303\\251\\377')\" F='$(id) `id` \\'; G=not; cd /",
        carry=True,
    )
    r = await lab.box.sh('printf "%s|" "$A" "$B" "$C" "$D" "$E" "$F" "${G-none}"')
    same(r.raw, b"1 2|it's|x\ny||caf\xc3\xa9\xff|$(id) `id` \\|none|", "the values")
    await lab.box.sh("unset A; export B=changed")
    same((await lab.box.sh('echo "${A-gone} $B"')).output, "gone changed\n", "the values afterwards")


@check()
async def what_was_given_for_one_command_is_that_commands_own(lab: Lab) -> None:
    """``env`` and ``cwd`` of a call do not leak into the next one; what its script changes does."""
    await lab.box.sh(f"cd {lab.box.folder}; export K=carried")
    r = await lab.box.sh('echo "$ONE $K $(pwd)"', env={"ONE": "1", "K": "mine"}, cwd="/")
    same(r.output, "1 mine /\n", "what the command sees")
    follow = await lab.box.sh('echo "${ONE-none} $K $(pwd)"')
    same(follow.output, f"none carried {lab.box.folder}\n", "what the next command sees")


@check()
async def a_clean_environment_holds_only_what_is_given(lab: Lab) -> None:
    """Nothing that an earlier command exported reaches a command that asks for none of it."""
    await lab.box.sh("export EVIL=1 PATH=/evil LD_PRELOAD=/evil.so PYTHONPATH=/evil 2>/dev/null")
    r = await lab.box.sh("/usr/bin/env || env", clean_env=True, carry=False, env={"PATH": "/usr/bin:/bin", "A": "1"})
    names = {line.partition("=")[0] for line in r.output.splitlines()}
    expect(
        names <= {"PATH", "A", "PWD", "SHLVL", "_", "OLDPWD", "HOME", "USER", "LOGNAME"},
        "nothing else is there",
        names=names,
    )
    expect("/evil" not in r.output and "A=1" in r.output, "the values are those given", output=r.output)
    await lab.box.sh("unset EVIL LD_PRELOAD PYTHONPATH", env={"PATH": "/usr/bin:/bin"})


@check()
async def a_call_may_leave_the_carried_state_alone(lab: Lab) -> None:
    """``carry=False`` starts from it and saves nothing."""
    await lab.box.sh(f"cd {lab.box.folder}; export K=v")
    same((await lab.box.sh('echo "$K"; cd /; export K=w', carry=False)).output, "v\n", "what the command sees")
    same((await lab.box.sh('pwd; echo "$K"')).output, f"{lab.box.folder}\nv\n", "what the next command sees")


@check()
async def parallel_commands_start_from_one_state(lab: Lab) -> None:
    """Each sees the state from before; the last one to end is what goes on, whole."""
    await lab.box.sh("export K=before; cd /")
    results = await asyncio.gather(
        *(
            lab.box.sh(f'echo "$K $(pwd)"; export K={i}; mkdir {lab.box.path(i)}; cd {lab.box.path(i)}; sleep {s}')
            for i, s in (("1", 0.1), ("2", 1.4), ("3", 0.7))
        )
    )
    same({r.output for r in results}, {"before /\n"}, "what each of them sees")
    r = await lab.box.sh('echo "$K $(pwd)"')
    same(r.output, f"2 {lab.box.path('2')}\n", "what goes on")


@check()
async def odd_directories_go_on_too(lab: Lab) -> None:
    """Names with spaces, quotes, newlines and bytes that are no text; through a link as the kernel sees it."""
    for name in (b"sp ace", b"it's", b"new\nline", b"$(id)", b"-rf", b"caf\xc3\xa9", b"\xff\xfe"):
        place = lab.box.folder.encode() + b"/" + name
        await lab.box.client.write_file(place + b"/f", b"")
        await lab.box.sh("true", cwd=place)
        await lab.box.client.exec(b"cd " + _quoted(place), timeout_s=20)
        r = await lab.box.sh('ls; printf %s "$(pwd -P)"')
        same(r.raw, b"f\n" + place, f"what the next command in {name!r} prints")


def _quoted(text: bytes) -> bytes:
    return b"'" + text.replace(b"'", b"'\\''") + b"'"


@check()
async def the_state_of_a_megabyte_goes_on(lab: Lab) -> None:
    """A hundred variables of 10 kB each, and a directory 2,000 bytes deep."""
    await lab.box.sh(
        "i=0; v=$(head -c 10000 /dev/zero | tr '\\0' x); while [ $i -lt 100 ]; do export V$i=$v; i=$((i+1)); done"
    )
    same((await lab.box.sh("echo ${#V0} ${#V99}")).output, "10000 10000\n", "the lengths")
    await lab.box.sh("i=0; while [ $i -lt 100 ]; do unset V$i; i=$((i+1)); done")
    deep = "/".join(["d" * 100] * 20)
    await lab.box.sh(f"mkdir -p {lab.box.path(deep)}; cd {lab.box.path(deep)}")
    same((await lab.box.sh("pwd")).output, f"{lab.box.path(deep)}\n", "the directory")
