"""What a sandbox keeps in: the node's files, secrets, network, devices and privileges stay outside."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import tempfile
from pathlib import Path

from rayroll.testing.conformance._lab import Lab
from rayroll.testing.conformance._registry import Capability, NotApplicable, check, expect, same

NEEDS = (Capability.OWN_PIDS,)
"""Only where there are namespaces, or a machine of its own: a plain process keeps nothing in, and is marked so."""


@check(needs=NEEDS)
async def the_hosts_variables_stay_outside(lab: Lab) -> None:
    """A secret in this process's environment is not in a sandbox created afterwards: not in env, not in any process."""
    name, value = "RAYROLL_CONFORMANCE_SECRET", secrets.token_hex(16)
    os.environ[name] = value
    try:
        async with lab.fresh() as live:
            r = await live.sh(
                "env; export -p; tr '\\0' '\\n' < /proc/self/environ; cat /proc/[0-9]*/environ 2>/dev/null"
            )
    finally:
        del os.environ[name]
    expect(name not in r.output and value not in r.output, "the secret is not inside")


@check(needs=NEEDS)
async def the_hosts_files_stay_outside(lab: Lab) -> None:
    """A file in this node's temporary folder and one in the home folder cannot be read under their names."""
    token = secrets.token_hex(16)
    places = [Path(tempfile.gettempdir()), Path.home(), Path.cwd()]
    files = [place / f".rayroll-conformance-{token}" for place in places if os.access(place, os.W_OK)]
    try:
        for file in files:
            await asyncio.to_thread(file.write_text, token)
            file.chmod(0o644)
        async with lab.fresh() as live:
            r = await live.sh("cat " + " ".join(f"'{f}'" for f in files) + " 2>/dev/null")
    finally:
        for file in files:
            file.unlink(missing_ok=True)
    expect(files and token not in r.output, "none of them can be read", output=r.output)


@check(needs=NEEDS)
async def the_hosts_passwords_and_keys_stay_outside(lab: Lab) -> None:
    """/etc/shadow and the like are absent, unreadable, or the image's own."""
    secret_files = ("/etc/shadow", "/etc/gshadow", "/etc/ssh/ssh_host_rsa_key", "/root/.ssh/id_rsa", "/etc/machine-id")
    for path in secret_files:
        try:
            ours = await asyncio.to_thread(Path(path).read_bytes)
        except OSError:
            continue
        r = await lab.box.sh(f"cat {path}", carry=False)
        same(r.raw == ours and len(ours) > 0, False, f"whether {path} is this node's")


@check(needs=NEEDS)
async def the_hosts_processes_stay_outside(lab: Lab) -> None:
    """This process is not in the sandbox's /proc, and no signal reaches it or its parent by number."""
    r = await lab.box.sh("cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '")
    expect(
        "rayroll.testing" not in r.output and "pytest" not in r.output,
        "no process of this node is seen",
        output=r.output,
    )
    pids = {int(name) for name in (await lab.box.sh("cd /proc; echo [0-9]*", carry=False)).output.split()}
    expect(len(pids) < 20, "only the sandbox's own processes are there", pids=sorted(pids))


@check(needs=(*NEEDS, Capability.INTRUDER))
async def no_network_is_there_unless_asked_for(lab: Lab) -> None:
    """No interface but loopback, and no way to any address of this node."""
    _unless_open(lab)
    r = await lab.box.sh("tail -n +3 /proc/net/dev | cut -d: -f1", carry=False)
    up = {name.strip() for name in r.output.split()}
    tunnels = {
        "lo",
        "tunl0",
        "sit0",
        "ip6tnl0",
        "gre0",
        "gretap0",
        "erspan0",
        "ip_vti0",
        "ip6_vti0",
        "ip6gre0",
        "dummy0",
    }
    expect(up <= tunnels, "no interface leads out", interfaces=up)
    same(await lab.ways_out(lab.box), [], "the addresses of this node that it reaches")


@check(needs=(*NEEDS, Capability.NETWORK))
async def a_network_is_there_when_asked_for(lab: Lab) -> None:
    """A program in it connects to this node; a neighbour without one still does not."""
    async with lab.fresh(network=True) as live:
        expect(await lab.ways_out(live), "it reaches an address of this node")
    _unless_open(lab)
    same(await lab.ways_out(lab.box), [], "what the neighbour reaches")


@check(needs=(*NEEDS, Capability.INTRUDER))
async def no_socket_of_the_host_is_in_reach(lab: Lab) -> None:
    """Abstract unix sockets of this node cannot be connected to, which a shared network namespace would allow."""
    name = f"rayroll-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"\0{name}")
        server.listen()
        r = await lab.box.sh("cat /proc/net/unix", carry=False)
    expect(name not in r.output, "this node's abstract sockets are not listed")


@check(needs=(*NEEDS, Capability.INTRUDER))
async def no_privilege_is_left_to_a_command(lab: Lab) -> None:
    """No mount, no device node, no host name, no kernel module, no reboot, no new privileges by setuid programs."""
    if not await lab.lacks(Capability.OWN_KERNEL):
        raise NotApplicable("root in a machine of its own may do all this to it")
    intruder = await lab.intruder(lab.box)
    folder = lab.box.path("mnt")
    await lab.box.sh(f"mkdir {folder}")
    r = await lab.box.sh(f"{intruder} privileges {folder}", carry=False)
    same(r.output, "", "what works")
    status = (await lab.box.sh("grep -E '^(Cap(Eff|Prm|Bnd)|NoNewPrivs)' /proc/self/status", carry=False)).output
    fields = dict(line.split(":\t") for line in status.splitlines())
    same(fields["NoNewPrivs"].strip(), "1", "no new privileges")
    held = int(fields["CapEff"], 16) | int(fields["CapPrm"], 16) | int(fields["CapBnd"], 16)
    dangerous = {
        "SYS_MODULE": 16,
        "SYS_RAWIO": 17,
        "SYS_PTRACE": 19,
        "SYS_ADMIN": 21,
        "SYS_BOOT": 22,
        "SYS_TIME": 25,
        "NET_ADMIN": 12,
        "BPF": 39,
        "MKNOD": 27,
    }
    same({name for name, bit in dangerous.items() if held >> bit & 1}, set(), "the dangerous capabilities")


@check(needs=NEEDS)
async def the_kernels_switches_cannot_be_turned(lab: Lab) -> None:
    """What of /proc and /sys configures the node is read-only or absent."""
    if not await lab.lacks(Capability.OWN_KERNEL):
        raise NotApplicable("its kernel is its own")
    switches = (
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/vm/drop_caches",
        "/proc/sysrq-trigger",
        "/proc/sys/kernel/hostname",
        "/sys/kernel/mm/transparent_hugepage/enabled",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/pids.max",
    )
    # Opened for appending, and nothing is written.
    r = await lab.box.sh("; ".join(f"(: >> {s}) 2>/dev/null && echo {s}" for s in switches) + "; true", carry=False)
    opened = r.output.split()
    same([s for s in opened if not s.startswith("/sys/fs/cgroup")], [], "the switches that open for writing")


@check(needs=(*NEEDS, Capability.MEMORY_LIMIT))
async def memory_asked_for_is_memory_had(lab: Lab) -> None:
    """A process may use most of its limit; a sandbox of twice the size holds what the smaller one did not."""
    async with lab.fresh(memory_mib=160) as live:
        r = await live.sh(f"{await lab.intruder(live)} eat 96")
    same(r.output, "ate 96\n", "what 160 MiB hold")


def _unless_open(lab: Lab) -> None:
    if lab.box.sandbox.facts.get("network") == "open":
        raise NotApplicable("its configuration leaves the network open, and its facts say so")
