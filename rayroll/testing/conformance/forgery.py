"""Forgery: nothing that a command prints, writes or reaches changes what the host believes about it."""

from __future__ import annotations

import asyncio
import hashlib
import random
import secrets

from rayroll.errors import CallerError, InfraFailure
from rayroll.runner.protocol import FrameType, Tag, encode_fields, encode_frame
from rayroll.testing.conformance._lab import OTHER_USER, Lab
from rayroll.testing.conformance._registry import Capability, check, expect, same
from rayroll.testing.sandboxes import Live

INTRUDER = (Capability.INTRUDER,)


def forged() -> bytes:
    """Frames that a runner could send: success for any request, an end of everything, a greeting, and their halves."""
    success = encode_fields({Tag.EXIT_CODE: 0, Tag.OUTPUT_BYTES: 6, Tag.HEAD_KEPT: 6, Tag.STATE_SAVED: 1})
    frames = [encode_frame(FrameType.OUTPUT, epoch, i, b"FORGED") for epoch in (1, 2) for i in range(1, 60)]
    frames += [encode_frame(FrameType.RESULT, epoch, i, success) for epoch in (1, 2) for i in range(1, 60)]
    for kind in (FrameType.HELLO_OK, FrameType.REFUSED, FrameType.ERROR, FrameType.SHUTDOWN, FrameType.KILL_ALL):
        frames.append(encode_frame(kind, 1, 0, success))
    frames.append(b"\xff" * 12)
    frames.append(encode_frame(FrameType.RESULT, 1, 1, success)[:-3])
    return b"".join(frames)


async def truthful(live: Live, what: str) -> None:
    """Go on if the sandbox still answers, and says what is so."""
    token = secrets.token_hex(4)
    r = await live.sh(f"echo {token}; exit 9", carry=False)
    same((r.output, r.exit_code), (f"{token}\n", 9), f"the result of the command after {what}")


@check()
async def forged_frames_on_standard_streams_are_just_output(lab: Lab) -> None:
    """Frames of ours, printed to standard output and error, arrive as bytes, and the exit code stays the real one."""
    await lab.box.client.write_file(lab.box.path("forged"), forged())
    r = await lab.box.sh("cat forged; cat forged >&2; exit 5", cwd=lab.box.folder)
    same(
        (hashlib.sha256(r.raw).hexdigest(), r.exit_code),
        (hashlib.sha256(forged() * 2).hexdigest(), 5),
        "output and code",
    )
    await truthful(lab.box, "forged frames")


@check()
async def random_bytes_and_end_marks_are_just_output(lab: Lab) -> None:
    """A megabyte of noise, and every end mark that executors are known to use."""
    noise = random.Random(7).randbytes(1 << 20)
    marks = b"\n__END__0\n###EOF###\n\x00\x04\x1a\x1b[6n\x1b]0;t\x07\nEXIT_CODE=0\n<<<done>>>\n" + bytes(
        [2, 0, 0, 0, 0, 0, 0, 1]
    )
    await lab.box.client.write_file(lab.box.path("noise"), noise + marks)
    r = await lab.box.sh("cat noise; exit 6", cwd=lab.box.folder, output_cap_bytes=4 << 20)
    same(
        (hashlib.sha256(r.raw).hexdigest(), r.exit_code),
        (hashlib.sha256(noise + marks).hexdigest(), 6),
        "output and code",
    )
    await truthful(lab.box, "noise")


@check()
async def forged_frames_by_way_of_proc_reach_nobody(lab: Lab) -> None:
    """Written to every descriptor of PID 1, of the parent and of every other process, by the shell alone."""
    await lab.box.client.write_file(lab.box.path("forged"), forged(), mode=0o644)
    script = (
        "for f in /proc/1/fd/* /proc/$PPID/fd/* /proc/[0-9]*/fd/[0-9]*; do "
        "case $f in /proc/$$/*|/proc/self/*) ;; *) (cat forged > $f) 2>/dev/null & ;; esac; done; "
        "sleep 0.3; echo real; exit 3"
    )
    r = await lab.box.sh(script, cwd=lab.box.folder)
    same((r.output, r.exit_code), ("real\n", 3), "the result")
    await truthful(lab.box, "writing to descriptors")


@check(needs=INTRUDER)
async def the_intruder_gets_into_an_unprotected_process(lab: Lab) -> None:
    """The control of the checks after it: aimed at an ordinary process, the same attacks do work here."""
    intruder = await lab.intruder(lab.box)
    r = await lab.box.sh(f"sleep 60 & {intruder} reach $! < /dev/null")
    expect("opened" in r.output, "it opens something of a process that nothing protects", output=r.output)


@check(needs=INTRUDER)
async def the_runner_and_the_keeper_cannot_be_reached(lab: Lab) -> None:
    """Their memory, environment and descriptors: no open, no ptrace, no pidfd_getfd, no process_vm, as any user."""
    await _reach(lab, None)


@check(needs=(*INTRUDER, Capability.USERS))
async def another_user_cannot_reach_them_either(lab: Lab) -> None:
    """The same as user 1000 of an image that runs as root."""
    await _reach(lab, OTHER_USER)


async def _reach(lab: Lab, user: str | None) -> None:
    intruder = await lab.intruder(lab.box)
    await lab.box.sh(f"chmod 777 {lab.box.folder}", carry=False)
    runner = lab.box.client.greeting.pid
    # $PPID is the keeper of this very command; the last are those of all other commands and transfers. The other one
    # has to have begun: until its exec it has its keeper's name, and after it is anybody's to reach.
    begun = lab.box.path("begun")
    other = asyncio.create_task(lab.box.sh(f"echo > {begun}; sleep 1; echo fine", user=user, carry=False))
    script = (
        f"until [ -e {begun} ]; do sleep 0.05; done; "
        f"for p in {runner} $PPID $(grep -ls rayroll /proc/[0-9]*/comm | cut -d/ -f3); do "
        f"{intruder} reach $p < {lab.box.path('forged')}; done; exit 3"
    )
    await lab.box.client.write_file(lab.box.path("forged"), forged(), mode=0o644)
    r = await lab.box.sh(script, user=user, carry=False)
    same((r.output, r.exit_code), ("", 3), "what the intruder got hold of")
    same((await other).output, "fine\n", "what another command prints meanwhile")
    await truthful(lab.box, "the attack")


@check(needs=INTRUDER)
async def forged_frames_to_every_terminal_and_descriptor_change_nothing(lab: Lab) -> None:
    """Whatever this process has open or can name gets them: our own descriptors that a command inherits, too."""
    intruder = await lab.intruder(lab.box)
    await lab.box.client.write_file(lab.box.path("forged"), forged(), mode=0o644)
    await lab.box.sh(f"cd {lab.box.folder}; export K=kept")
    for options in ({}, {"carry": False}):
        r = await lab.box.sh(f"{intruder} spray < forged 2>/dev/null; echo real; exit 4", cwd=lab.box.folder, **options)
        same((r.output, r.exit_code), ("real\n", 4), "the result")
        await truthful(lab.box, "the spray")
    follow = await lab.box.sh('echo "$K"')
    same(follow.output, "kept\n", "what is still carried")


@check()
async def a_forged_state_is_the_agents_own_future_only(lab: Lab) -> None:
    """Written by hand into the descriptor that carries it: garbage is dropped, and a clean command stays clean."""
    script = (
        "for f in /proc/self/fd/*; do "
        "case $(readlink $f) in *state*) (printf 'RRS2\\377\\377\\377\\377junk' > $f);; esac; "
        "done 2>/dev/null; kill -9 $$"
    )
    for _ in range(2):
        same((await lab.box.sh(script)).exit_code, 137, "the code of the command that forges it")
        r = await lab.box.sh("echo ok; pwd")
        expect(r.output.startswith("ok\n/"), "the next command runs in a directory", output=r.output)
    r = await lab.box.sh("env || /usr/bin/env", clean_env=True, carry=False, env={"PATH": "/usr/bin:/bin"})
    expect("junk" not in r.output, "a clean environment has nothing of it", output=r.output)


@check()
async def planted_programs_are_not_taken_for_the_systems(lab: Lab) -> None:
    """``sh``, ``bash``, ``env``, ``pytest`` and others first on PATH and in the directory: the real ones are taken."""
    names = (
        "sh",
        "bash",
        "dash",
        "env",
        "python",
        "python3",
        "pytest",
        "cat",
        "test",
        "runner",
        "id",
        "su",
        "tar",
        "mkdir",
    )
    fake = "#!/bin/sh\necho PLANTED\nexit 0\n"
    for name in names:
        await lab.box.client.write_file(lab.box.path(f"bin/{name}"), fake.encode(), mode=0o755)
        await lab.box.client.write_file(lab.box.path(name), fake.encode(), mode=0o755)
    await lab.box.sh(f"cd {lab.box.folder}; export PATH={lab.box.path('bin')}:.:$PATH")
    r = await lab.box.sh("echo real; exit 3")
    same((r.output, r.exit_code), ("real\n", 3), "the result of the agent's next command")
    await lab.box.client.write_file(lab.box.path("data"), b"real")
    same(await lab.box.client.read_file(lab.box.path("data")), b"real", "a file written and read")
    await lab.box.client.download_tree(lab.box.path("bin"))
    clean = await lab.box.sh(
        "cat data; id -u >/dev/null; echo; exit 4",
        clean_env=True,
        carry=False,
        cwd=lab.box.folder,
        env={"PATH": "/usr/local/bin:/usr/bin:/bin"},
    )
    same((clean.output, clean.exit_code), ("real\n", 4), "the result of a command with a clean PATH")


@check()
async def start_up_files_and_preloads_do_not_reach_a_clean_command(lab: Lab) -> None:
    """BASH_ENV, ENV, LD_PRELOAD, PYTHONPATH, PYTHONSTARTUP, PROMPT_COMMAND, exported functions, dot files in HOME."""
    await lab.box.client.write_file(lab.box.path("evil.sh"), b"echo PLANTED\nexit 0\n", mode=0o755)
    for dot in (".bashrc", ".profile", ".bash_profile", ".shrc"):
        await lab.box.sh(f'cp {lab.box.path("evil.sh")} "$HOME/{dot}" 2>/dev/null; true')
    variables = " ".join(
        f"{name}={lab.box.path('evil.sh')}"
        for name in ("BASH_ENV", "ENV", "LD_PRELOAD", "PYTHONSTARTUP", "PYTHONPATH", "PROMPT_COMMAND")
    )
    try:
        await lab.box.sh(
            f"echo() {{ printf PLANTED; }}; (export -f echo) 2>/dev/null && export -f echo; export {variables}"
        )
        clean = await lab.box.sh("echo real; exit 4", clean_env=True, carry=False, env={"PATH": "/usr/bin:/bin"})
        same((clean.output, clean.exit_code), ("real\n", 4), "the result of a command with a clean environment")
        program = await lab.box.client.exec(argv=["/bin/sh", "-c", "echo real"], clean_env=True, carry=False, env={})
        same(program.output, "real\n", "the output of a program without a shell of ours")
    finally:
        await lab.box.sh(
            'cd "$HOME" && rm -f .bashrc .profile .bash_profile .shrc',
            clean_env=True,
            carry=False,
            env={"PATH": "/usr/bin:/bin", "HOME": "/tmp"},
        )


@check()
async def bash_env_does_not_hide_the_agents_own_result(lab: Lab) -> None:
    """Carried to the agent's own commands it may change them, but never their exit code behind their back."""
    await lab.box.client.write_file(lab.box.path("evil.sh"), b"trap 'exit 0' EXIT\n", mode=0o755)
    await lab.box.sh(f"export BASH_ENV={lab.box.path('evil.sh')} ENV={lab.box.path('evil.sh')}")
    r = await lab.box.sh("echo real; exit 3")
    same((r.output, r.exit_code), ("real\n", 3), "the result of the next command")


@check(needs=(Capability.OWN_PIDS,))
async def a_planted_carrier_answers_for_nobody(lab: Lab) -> None:
    """A second runner started inside, and connections to every unix socket in sight, are not heard by the host."""
    script = (
        "r=/proc/self/fd/213; [ -x $r ] || r=/.rayroll/runner; "
        "(printf x | timeout 1 $r serve >/dev/null 2>&1 &); (timeout 1 $r once </dev/null >/dev/null 2>&1 &); "
        "for s in $(cut -d' ' -f8 /proc/net/unix 2>/dev/null | grep /); do "
        "(timeout 1 $r connect $s </dev/null >/dev/null 2>&1 &); done; "
        "echo real; exit 3"
    )
    r = await lab.box.sh(script)
    same((r.output, r.exit_code), ("real\n", 3), "the result")
    for _ in range(5):
        await truthful(lab.box, "planted runners")


@check(needs=INTRUDER)
async def taking_the_runners_limits_away_never_makes_a_result_wrong(lab: Lab) -> None:
    """The kernel lets a process of the same user lower the runner's limits: commands then fail or the sandbox is lost,
    typed, but no result is invented."""
    async with lab.fresh(lease_s=3) as live:
        intruder = await lab.intruder(live)
        attack = f"{intruder} starve {live.client.greeting.pid} >/dev/null; {intruder} starve $PPID >/dev/null; exit 7"
        for script in (attack, *[f"echo {i}; exit 7" for i in range(5)]):
            try:
                r = await live.sh(script, carry=False, timeout_s=5)
            except (InfraFailure, CallerError):
                continue
            expect(r.exit_code != 0, "no success is invented", script=script, result=r)
