"""Directory and exported variables go from one command to the next; nothing can end the session."""

from __future__ import annotations

import asyncio
import struct

import pytest
from runner.live import sandbox

ENDS = {  # B07: how a command may end, its code, and whether its state can be known afterwards
    "exit 7": (7, True),
    "set -e; false": (1, True),
    "exec true": (0, False),
    "sleep 300 & exit 1": (1, True),
    "kill -9 $$": (137, False),
    "trap 'exit 3' EXIT": (3, False),
    "echo 'oops": (2, None),
    "exec 209>&- 210>&- 213>&- 214>&- 215>&- 216>&-": (0, None),
    "ulimit -f 0": (0, None),
    "ulimit -n 3": (0, None),
    "set -u": (0, True),
    "set -C": (0, True),
    "set -f; IFS=/": (0, True),
    "unset PATH": (0, True),
    "umask 777": (0, True),
    "cd() { :; }; pwd() { echo /wrong; }; read() { :; }; echo() { :; }": (0, True),
    "alias echo=false cd=false read=false": (0, True),
    "exec >&- 2>&-": (0, True),
}


@pytest.mark.parametrize("script", ENDS)
async def test_no_end_of_a_command_ends_the_session(shell: str, script: str) -> None:
    code, saved = ENDS[script]
    async with sandbox(shell=shell) as box:
        await box.sh("mkdir /tmp/before /tmp/after; cd /tmp/before; export K=before")
        r = await box.sh(f"cd /tmp/after; export K=after\n{script}")
        if script == "exec 209>&- 210>&- 213>&- 214>&- 215>&- 216>&-" and shell != "bash":
            code = r.exit_code  # other shells take one digit only: a command of that name is not found
        assert r.exit_code == code
        assert saved in (None, r.state_saved)
        known = "after" if r.state_saved else "before"
        assert (await box.sh('echo "$K"; pwd')).output == f"{known}\n/tmp/{known}\n"


HARD_ENDS = (  # what could make a trap fail, print, hang, or change the code
    "set -e; ulimit -f 0; exit 5",
    "ulimit -f 0; echo x > /tmp/f",
    "set -e; exit 5",
    "set -eu; exit 5",
    "set -eu; false",
    "ulimit -n 3; exit 5",
    "ulimit -n 0; exit 5",
    "echo() { :; }; printf() { :; }; umask() { :; }; exit 5",
    "read() { :; }; exit 5",
    "unalias() { :; }; alias times=: export=: trap=: read=: '['=true; exit 5",
    "exec > /dev/full; exit 5",
    "exec < /dev/zero; exit 5",
    "readonly _rr; exit 5",
    "_rr=s; exit 5",
    "set -a; exit 5",
    "set -ax; exit 5",
    "set -f; IFS=/0123; exit 5",
    "kill -XFSZ $$",
    "kill -ALRM $$",
    "kill -USR1 $$",
    "kill -INT $$",
    "kill -QUIT $$",
    "trap 'exit 6' TERM; kill -TERM $$",
    "trap '' TERM INT HUP; exit 5",
    "f() { exit 5; }; f",
    "cd /; unset PWD OLDPWD; exit 5",
    "exit 5 &",
    "(exit 5)",
    "exit",
    "false; exit",
)
HARD_ENDS_OF_BASH = (
    "set -e; exec 209>&- 210>&- 213>&- 214>&- 215>&- 216>&-; exit 5",
    "exec 209<&- 211<&- 210>/dev/full 214>/dev/full; exit 5",
    "set -eE -o pipefail; trap 'echo ERR' ERR; exit 5",
    "trap 'echo DEBUG $BASH_COMMAND' DEBUG; exit 5",
    "set -T; shopt -s extdebug; trap 'echo RETURN' RETURN; exit 5",
    "enable -n times export read trap '['; exit 5",
    "export() { :; }; trap() { :; }; times() { :; }; exit 5",
    "set -o posix; exit 5",
    "POSIXLY_CORRECT=1; exit 5",
    "readonly POSIXLY_CORRECT; exit 5",
    "set -r; exit 5",
    "shopt -s expand_aliases; alias times=: export=:; exit 5",
    "shopt -s failglob nullglob; exit 5",
    "coproc sleep 100; exit 5",
    "set -m; sleep 100 & exit 5",
    "exec 3>&- 210>/tmp/x; exit 5",
    "BASH_XTRACEFD=1; set -x; exit 5",
)


async def test_the_trap_never_changes_what_a_command_ends_with(shell: str) -> None:
    name = "bash" if shell == "bash" else "sh"
    async with sandbox(shell=shell) as box:
        for script in HARD_ENDS + (HARD_ENDS_OF_BASH if shell == "bash" else ()):
            ours = await box.sh(script, timeout_s=10)
            plain = await box.client.exec(argv=[name, "-c", script], timeout_s=10)
            assert (script, ours.exit_code, ours.timed_out) == (script, plain.exit_code, False)
            # A shell that may not redirect complains of our redirection; BASH_XTRACEFD shows all that a shell does.
            if not any(word in script for word in ("ulimit -n", "set -r", "XTRACEFD")):
                assert (script, ours.output) == (script, plain.output)
        assert (await box.sh("echo ${POSIXLY_CORRECT-none} ${_rr-none}")).output == "none none\n"


async def test_any_value_goes_on_and_unset_is_remembered(shell: str) -> None:
    values = {
        "A": b"1 2",
        "B": b"it's",
        "C": b"x\ny\n",
        "D": b"",
        "E": b"caf\xc3\xa9\xff",
        "F": b'$(id) `id` \\ "',
        "G": b"=a=b",
    }
    async with sandbox(shell=shell) as box:
        for name, value in values.items():
            await box.client.exec(f"export {name}=".encode() + b"'" + value.replace(b"'", b"'\\''") + b"'")
        r = await box.sh('printf \'%s|\' "$A" "$B" "$C" "$D" "$E" "$F" "$G"')
        assert r.raw == b"".join(v + b"|" for v in values.values())
        await box.sh("unset A; export B=changed; notexported=1")
        assert (await box.sh('echo "${A-gone} $B ${notexported-none}"')).output == "gone changed none\n"


async def test_a_command_that_changes_nothing_says_saved(shell: str) -> None:
    """The helper runs where something changed only; whatever is printed instead must not be taken for a change."""
    async with sandbox(shell=shell) as box:
        await box.sh("export A='x y' B=; cd /tmp")
        for i in range(5):
            r = await box.sh(f"echo {i}; local=1; umask 077; set -f")
            assert (r.output, r.state_saved) == (f"{i}\n", True)
        assert (await box.sh('echo "$A|$B|$(pwd)|${local-none}"')).output == "x y||/tmp|none\n"


async def test_changes_back_and_forth_are_all_seen(shell: str) -> None:
    async with sandbox(shell=shell) as box:
        for i in range(6):
            await box.sh(
                f"cd {'/tmp' if i % 2 else '/'}; export N=$((${{N-0}} + 1)); unset M; "
                "[ $((N % 3)) -ne 0 ] || export M=m"
            )
            r = await box.sh('echo "$N ${M-none}"; pwd')
            assert r.output == f"{i + 1} {'m' if (i + 1) % 3 == 0 else 'none'}\n{'/tmp' if i % 2 else '/'}\n"


async def test_what_a_call_gives_is_its_own(shell: str) -> None:
    async with sandbox(shell=shell) as box:
        await box.sh("export K=carried; cd /tmp")
        for given in ({"ONE": "1", "K": "mine"}, {"ONE": "1", "K": "mine"}, {"K": "mine"}, {}):
            r = await box.sh('echo "${ONE-none} $K"; pwd', env=given, cwd="/")
            assert r.output == f"{given.get('ONE', 'none')} {given.get('K', 'carried')}\n/\n"
        assert (await box.sh('echo "${ONE-none} $K"; pwd')).output == "none carried\n/tmp\n"
        await box.sh("export K=changed ONE=2; cd /", env={"K": "mine", "ONE": "1"})
        assert (await box.sh('echo "$ONE $K"; pwd')).output == "2 changed\n/\n"


async def test_the_same_end_from_another_beginning_is_a_change(shell: str) -> None:
    """A variable that a call gave, and that the next one exports itself with that value, is carried from then on."""
    async with sandbox(shell=shell) as box:
        await box.sh("true", env={"A": "1"})
        await box.sh("true", env={"A": "1"})
        assert (await box.sh("echo ${A-none}")).output == "none\n"
        await box.sh("export A=1")
        assert (await box.sh("echo ${A-none}")).output == "1\n"
        await box.sh("cd /tmp", cwd="/usr")
        await box.sh("cd /", cwd="/usr")
        assert (await box.sh("pwd")).output == "/\n"


@pytest.mark.usefixtures("namespaces")
async def test_parallel_commands_start_from_one_state_and_all_their_changes_count() -> None:
    async with sandbox() as box:
        await box.sh("export K=before; cd /")
        scripts = [f'echo "$K $(pwd)"; export K={i} V{i}=x; cd /tmp; sleep 0.{i}' for i in range(1, 5)]
        results = await asyncio.gather(*(box.sh(script) for script in scripts))
        assert {r.output for r in results} == {"before /\n"}
        assert (await box.sh('echo "$K $V1$V2$V3$V4 $(pwd)"')).output == "4 xxxx /tmp\n"


@pytest.mark.usefixtures("namespaces")
async def test_a_change_beside_a_command_is_not_taken_for_its_own() -> None:
    """What a command printed while another changed the state says nothing about the state after both."""
    async with sandbox() as box:
        await box.sh("true")
        slow = asyncio.create_task(box.sh("export A=1; while [ ! -e /tmp/go ]; do sleep 0.01; done"))
        await box.sh("export Z=1")
        (box.folder / "go").touch()
        await slow
        assert (await box.sh('echo "$A ${Z-none}"')).output == "1 1\n"
        await box.sh("unset Z")
        assert (await box.sh('echo "$A ${Z-none}"')).output == "1 none\n"


async def test_a_directory_that_is_gone_is_told_once(shell: str) -> None:
    async with sandbox(shell=shell) as box:
        await box.sh("mkdir -p /tmp/a/gone; cd /tmp/a/gone; rmdir /tmp/a/gone")
        r = await box.sh("pwd")
        assert (r.output, r.exit_code, "gone" in r.notice) == ("/tmp/a\n", 0, True)
        assert (await box.sh("pwd")).notice == ""


async def test_an_environment_that_is_asked_to_be_clean_is_and_leaves_the_carried_one_alone(shell: str) -> None:
    async with sandbox(shell=shell) as box:
        await box.sh("export EVIL=1 PATH=/evil:$PATH; cd /tmp")
        r = await box.sh("/usr/bin/env; export LATE=1; cd /", clean_env=True, env={"PATH": "/usr/bin:/bin", "A": "1"})
        names = {line.partition("=")[0] for line in r.output.splitlines()}
        assert names <= {"PATH", "A", "PWD", "SHLVL", "_", "OLDPWD"}
        assert not r.state_saved
        assert (await box.sh('echo "$EVIL ${LATE-none} ${A-none}"; pwd')).output == "1 none none\n/tmp\n"


@pytest.mark.usefixtures("namespaces")
async def test_functions_that_bash_exports_go_on() -> None:
    async with sandbox() as box:
        await box.sh('f() { echo "f $1"; }; export -f f')
        assert (await box.sh("f 1; bash -c 'f 2'")).output == "f 1\nf 2\n"
        await box.sh("unset -f f")
        assert (await box.sh("f 1")).exit_code == 127


@pytest.mark.usefixtures("namespaces")
async def test_bash_env_acts_in_what_a_command_starts_and_not_in_its_own_shell() -> None:
    async with sandbox() as box:
        (box.folder / "it's").write_text("echo sourced\ntrap 'exit 0' EXIT\n")
        await box.sh("""export BASH_ENV="/tmp/it's" """)
        for carry in (True, False):
            r = await box.sh("echo own $BASH_ENV; bash -c 'exit 9'; echo $?; exit 3", carry=carry)
            assert (r.output, r.exit_code) == ("own /tmp/it's\nsourced\n0\n", 3)
        await box.sh("unset BASH_ENV")
        assert (await box.sh("bash -c 'exit 9'")).exit_code == 9


@pytest.mark.usefixtures("namespaces")
async def test_bash_in_posix_mode_carries_its_state_too() -> None:
    async with sandbox() as box:
        await box.sh("export POSIXLY_CORRECT=1 A=1; cd /tmp")
        await box.sh("export B=2")
        assert (await box.sh('echo "$A $B"; pwd')).output == "1 2\n/tmp\n"


@pytest.mark.usefixtures("namespaces")
async def test_a_session_over_ssh_reads_no_bashrc() -> None:
    """Debian's bash takes SSH_CLIENT for a remote shell that wants ~/.bashrc, and then skips BASH_ENV."""
    async with sandbox(env={"SSH_CLIENT": "1 2 3", "HOME": "/tmp"}) as box:
        (box.folder / ".bashrc").write_text("echo bashrc\n")
        assert (await box.sh("export A=1; export SSH_CLIENT='4 5 6'")).output == ""
        assert (await box.sh("echo $A")).output == "1\n"


@pytest.mark.usefixtures("namespaces")
async def test_what_is_too_large_to_carry_is_told_and_the_session_goes_on() -> None:
    async with sandbox() as box:
        await box.sh("export K=kept")
        fill = "for i in $(seq 130); do export V$i=$(head -c %d /dev/zero | tr '\\0' x); done"
        assert (await box.sh(fill % 11_000)).state_saved
        r = await box.sh(fill % 13_000)
        assert (r.state_saved, "1.5 MiB" in r.notice) == (False, True)
        r = await box.sh('echo "$K ${#V1}"')
        assert (r.output, r.notice) == ("kept 11000\n", "")


@pytest.mark.parametrize("size_kib", [1, 20, 60, 100])
async def test_unchanged_variables_of_any_size_are_carried(shell: str, size_kib: int) -> None:
    async with sandbox(shell=shell) as box:
        assert (await box.sh(f"export BIG=$(head -c {size_kib << 10} /dev/zero | tr '\\0' x)")).state_saved
        for _ in range(3):
            r = await box.sh('echo "${#BIG}"')
            assert (r.output, r.state_saved) == (f"{size_kib << 10}\n", True)


FORGED = {
    "short": b"RR",
    "wrong magic": struct.pack("<IIII", 0, 1, 0, 0) + b"/",
    "directory without an end": struct.pack("<IIII", 0x32535252, 4000, 0, 0) + b"/",
    "no slash": struct.pack("<IIII", 0x32535252, 1, 0, 0) + b"x",
    "directory with a NUL": struct.pack("<IIII", 0x32535252, 3, 0, 0) + b"/\0x",
    "no last NUL": struct.pack("<IIII", 0x32535252, 1, 3, 0) + b"/A=1",
    "huge": struct.pack("<IIII", 0x32535252, 1, 2**32 - 1, 0) + b"/",
    "text that is not there": struct.pack("<IIII", 0x32535252, 1, 0, 500) + b"/",
    "empty directory": struct.pack("<IIII", 0x32535252, 0, 0, 0),
}


FORGE = "trap - EXIT; dd if=/tmp/forged of=/proc/self/fd/210 bs=1M status=none"


@pytest.mark.parametrize("forgery", FORGED)
@pytest.mark.usefixtures("namespaces")
async def test_a_forged_state_is_dropped(forgery: str) -> None:
    async with sandbox() as box:
        await box.sh("export K=before; cd /tmp")
        (box.folder / "forged").write_bytes(FORGED[forgery])
        r = await box.sh(FORGE)
        assert (r.exit_code, r.state_saved) == (0, False)
        assert (await box.sh('echo "$K"; pwd')).output == "before\n/tmp\n"


@pytest.mark.usefixtures("namespaces")
async def test_a_state_written_by_hand_is_its_own_authors_future() -> None:
    """Unsorted, with a name twice, an entry that is none and one without a name: what makes sense of it goes on."""
    env = b"Z=1\0A=1\0A=2\0junk\0=x\0\0K=\0"
    forged = struct.pack("<IIII", 0x32535252, 1, len(env), 0) + b"/" + env
    async with sandbox() as box:
        (box.folder / "forged").write_bytes(forged)
        r = await box.sh(FORGE)
        assert r.state_saved
        out = (await box.sh("/usr/bin/env", env={"PATH": "/usr/bin"})).output.splitlines()
        assert "Z=1" in out and "K=" in out and len([line for line in out if line.startswith("A=")]) == 1
        assert not [line for line in out if line.startswith(("junk", "=x"))]


async def test_whoever_says_that_nothing_changed_harms_only_their_own_state(shell: str) -> None:
    async with sandbox(shell=shell) as box:
        await box.sh("export K=before")
        await box.sh("true")
        ask = "echo x > /proc/self/fd/214"
        lie = "{ export -p; times; } >| /proc/self/fd/210" if shell == "bash" else f"{ask}; {ask}; {ask}; {ask}"
        for _ in range(3):
            r = await box.sh(f"{lie}; export K=after; exit 4")
            assert r.exit_code == 4
            r = await box.sh(f"trap - EXIT; {lie}; export K=lost; exit 5")
            assert r.exit_code == 5
        assert (await box.sh('echo "$K"')).output in ("before\n", "after\n")
        assert (await box.sh("echo next; exit 3")).exit_code == 3
