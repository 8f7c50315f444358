"""A switch with delays and losses, in user space: every port is a TUN device, in a network namespace of its own but for
the first, by which the others also reach what the first one's machine reaches.

Why not ``tc netem``: it is a kernel module that many kernels lack, small virtual machines' above all
(``CONFIG_NET_SCH_NETEM``). TUN devices are everywhere, and go away with the process that holds them; so do namespaces
without a name. However this process ends, nothing of its network stays.

Run as a program of its own: ``wire.py NODES``. First line of output: the addresses, and the file descriptors that hold
the namespaces, as JSON. Then one line of JSON in, one out:
``{"node": 1, "delay_s": 0.1, "loss": 0.05, "is_cut": false}``.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import heapq
import json
import os
import random
import select
import struct
import subprocess
import sys
import time
from dataclasses import dataclass

TUNSETIFF = 0x400454CA
IFF_TUN_NO_PI = 0x0001 | 0x1000
CLONE_NEWNET = 0x40000000
LIBC = ctypes.CDLL(None, use_errno=True)

MTU_BYTES = 32_000
"""Few and large packets: each costs this interpreter some 20 microseconds."""


@dataclass
class Port:
    """One end of a link."""

    tun: int
    namespace: int | None
    """Descriptor of its network namespace; None: the caller's own."""
    address: str
    delay_s: float = 0.0
    """Each way."""
    loss: float = 0.0
    """Share of the packets that never arrive, each way."""
    is_cut: bool = False


def open_tun(name: str) -> int:
    """A TUN device in the present namespace; OSError EBUSY when somebody else's has this name."""
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN_NO_PI))
    except OSError:
        os.close(tun)
        raise
    return tun


def set_up(name: str, address: str) -> None:
    for words in (
        "link set lo up",
        f"link set {name} mtu {MTU_BYTES} txqueuelen 10000 up",
        f"address add {address}/24 dev {name}",
    ):
        subprocess.run(["ip", *words.split()], check=True)


def first_port() -> tuple[Port, str]:
    """The port in the caller's namespace, and the beginning of all addresses of this network.

    They come from 198.18.0.0/15, which RFC 2544 sets aside for tests of networks. The device's name holds its network's
    number and only one process can have it: so two switches never take the same network.
    """
    taken = subprocess.run(["ip", "route"], check=True, capture_output=True, text=True).stdout
    numbers = list(range(512))
    random.shuffle(numbers)
    for number in numbers:
        prefix = f"198.{18 + number // 256}.{number % 256}"
        if f"{prefix}." in taken:
            continue
        try:
            tun = open_tun(f"rrwire{number}")
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            continue
        set_up(f"rrwire{number}", f"{prefix}.1")
        return Port(tun, None, f"{prefix}.1"), prefix
    raise RuntimeError("every network of 198.18.0.0/15 is taken: see `ip route`")


def call(function: str, *words: int) -> None:
    if getattr(LIBC, function)(*words):
        code = ctypes.get_errno()
        raise OSError(code, f"{function}: {os.strerror(code)}")


def open_ports(nodes: int) -> list[Port]:
    """One port here, and one in each of ``nodes`` new namespaces."""
    first, prefix = first_port()
    ports = [first]
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    for node in range(1, nodes + 1):
        call("unshare", CLONE_NEWNET)
        namespace = os.open("/proc/self/ns/net", os.O_RDONLY)
        ports.append(Port(open_tun("wire"), namespace, f"{prefix}.{node + 1}"))
        set_up("wire", ports[-1].address)
        subprocess.run(["ip", "route", "add", "default", "dev", "wire"], check=True)
    call("setns", home, CLONE_NEWNET)
    os.close(home)
    return ports


def serve(ports: list[Port]) -> None:
    """Carry packets and obey until the end of input, which is the end of whoever started us."""
    by_tun = {port.tun: port for port in ports}
    by_address = {bytes(map(int, port.address.split("."))): port for port in ports}
    under_way: list[tuple[float, int, bytes, Port, Port]] = []
    count = 0
    while True:
        wait_s = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
        # Not epoll: its timeouts are whole milliseconds in Python.
        for ready in select.select([sys.stdin, *by_tun], [], [], wait_s)[0]:
            if ready is sys.stdin:
                if not (line := sys.stdin.readline()):
                    return
                obey(ports, json.loads(line))
                continue
            source = by_tun[ready]
            for packet in packets(ready):
                target = by_address.get(packet[16:20], ports[0])
                if target is not source and random.random() >= source.loss and random.random() >= target.loss:
                    count += 1
                    due_s = time.monotonic() + source.delay_s + target.delay_s
                    heapq.heappush(under_way, (due_s, count, packet, source, target))
        while under_way and under_way[0][0] <= time.monotonic():
            _, _, packet, source, target = heapq.heappop(under_way)
            if not source.is_cut and not target.is_cut:
                # A full queue loses packets, as on any wire.
                with contextlib.suppress(OSError):
                    os.write(target.tun, packet)


def packets(tun: int) -> list[bytes]:
    """What waits in a device, at most a hundred of it, so that the others have their turn."""
    found: list[bytes] = []
    try:
        while len(found) < 100:
            found.append(os.read(tun, 65536))
    except BlockingIOError:
        pass
    return found


def obey(ports: list[Port], order: dict[str, float]) -> None:
    port = ports[int(order["node"])]
    port.delay_s, port.loss = order["delay_s"], order["loss"]
    port.is_cut = bool(order["is_cut"])
    say({"done": order})


def say(answer: object) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    opened = open_ports(int(sys.argv[1]))
    say([(port.address, port.namespace) for port in opened])
    serve(opened)
