"""The network of the test bed's containers: a bridge of its own, and a way out that touches no other rule.

dockerd could write these rules itself, but it empties the DOCKER chains when it starts, sets the FORWARD policy
to DROP, and leaves all of it behind. Next to another engine that cuts off the other's published ports. So dockerd
runs with `--iptables=false`, and the rules it needs are here, in one chain per table that `down` removes again.
Published ports still work, through docker-proxy. What is given up: networks are not shielded from one another.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from bed.errors import TestbedError
from bed.place import Place
from bed.shell import run, succeeds

_FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")
# Private ranges that few home and cloud networks use; the first that overlaps no route of this machine is taken.
_RANGES = ("10.213.0.0/16", "10.214.0.0/16", "172.29.0.0/16", "172.28.0.0/16", "192.168.0.0/16")
_TOOLS = ("iptables", "iptables-nft", "iptables-legacy")


@dataclass(frozen=True, slots=True)
class Bridge:
    """One bridge, one address range, one chain. Named after the state folder, so that two test beds never meet."""

    place: Place

    @property
    def _id(self) -> str:
        return hashlib.sha256(str(self.place.state).encode()).hexdigest()[:8]

    @property
    def device(self) -> str:
        return f"rayroll{self._id}"  # 15 characters: the longest that Linux takes

    @property
    def _chain(self) -> str:
        return f"RAYROLL-{self._id}"

    @property
    def range(self) -> ipaddress.IPv4Network:
        """All addresses of the test bed's containers; chosen by the first `up`."""
        recorded = self.place.recorded("bridge-range")
        assert recorded is not None, "up() chooses the range"
        return ipaddress.IPv4Network(recorded)

    @property
    def default_network(self) -> ipaddress.IPv4Network:
        """The lower quarter: the default bridge network. /18 has more addresses than a bridge has ports (1,023)."""
        return next(self.range.subnets(prefixlen_diff=2))

    @property
    def user_networks(self) -> ipaddress.IPv4Network:
        """The upper half: what `docker network create` draws from."""
        return list(self.range.subnets(prefixlen_diff=1))[1]

    @property
    def address(self) -> ipaddress.IPv4Address:
        """The machine's own address on the bridge: reachable from containers and from the machine."""
        return self.default_network[1]

    def up(self) -> bool:
        """Make the bridge and its rules; what is there already stays.

        Returns:
            Whether the addresses are the same as last time: dockerd remembers networks made of the old ones.

        Raises:
            TestbedError: No kind of iptables works here, so containers could reach nothing.
        """
        before = self.place.recorded("bridge-range")
        if not self._exists():
            self._delete_devices()
            if before is None or _overlaps_a_route(self.range):
                self.place.record("bridge-range", _free_range())
            run(["ip", "link", "add", self.device, "type", "bridge"])
            run(["ip", "address", "add", f"{self.address}/{self.default_network.prefixlen}", "dev", self.device])
        run(["ip", "link", "set", self.device, "up"])
        if _FORWARDING.read_text().strip() == "0":
            self.place.record("forwarding-was-off", "yes")
            _FORWARDING.write_text("1")
        self._add_rules()
        return before in (None, self.place.recorded("bridge-range"))

    def down(self) -> None:
        """Take away the rules and the bridge. Containers must have ended."""
        tool = self.place.recorded("iptables")
        if tool is not None and shutil.which(tool):
            for table, hook in (("nat", "POSTROUTING"), ("filter", "FORWARD")):
                iptables = [tool, "-w", "-t", table]
                while succeeds([*iptables, "-D", hook, "-j", self._chain]):
                    pass
                if succeeds([*iptables, "-F", self._chain]):
                    run([*iptables, "-X", self._chain])
        self._delete_devices()
        if self.place.recorded("forwarding-was-off") == "yes" and not _others_forward():
            _FORWARDING.write_text("0")
            self.place.record("forwarding-was-off", "no")

    def mtu(self) -> int:
        """That of the way out: larger packets from containers would be lost where the path MTU is not told."""
        default = _routes("default")
        device = default[0]["dev"] if default else "lo"
        return min(1500, int(Path("/sys/class/net", str(device), "mtu").read_text()))

    def _exists(self) -> bool:
        return Path("/sys/class/net", self.device).exists()

    def _delete_devices(self) -> None:
        """Ours, and those that dockerd made for `docker network create`: a stopped dockerd leaves them."""
        if self._exists():
            run(["ip", "link", "delete", self.device])
        if self.place.recorded("bridge-range") is None:
            return
        for bridge in json.loads(run(["ip", "-json", "-4", "address", "show", "type", "bridge"])):
            addresses = [ipaddress.IPv4Address(address["local"]) for address in bridge.get("addr_info", ())]
            if any(address in self.range for address in addresses):
                run(["ip", "link", "delete", bridge["ifname"]])

    def _add_rules(self) -> None:
        here = str(self.range)
        rules = {
            ("nat", "POSTROUTING"): [["-s", here, "!", "-d", here, "-j", "MASQUERADE"]],
            ("filter", "FORWARD"): [
                ["-s", here, "-j", "ACCEPT"],
                ["-d", here, "-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED", "-j", "ACCEPT"],
            ],
        }
        tool = self._working_iptables()
        for (table, hook), wanted in rules.items():
            iptables = [tool, "-w", "-t", table]
            if not succeeds([*iptables, "-F", self._chain]):
                run([*iptables, "-N", self._chain])
            for rule in wanted:
                run([*iptables, "-A", self._chain, *rule])
            # First in its hook: a firewall of the machine that drops forwarded packets would have the last word.
            if not succeeds([*iptables, "-C", hook, "-j", self._chain]):
                run([*iptables, "-I", hook, "1", "-j", self._chain])

    def _working_iptables(self) -> str:
        """The kind whose MASQUERADE this kernel accepts: some kernels have only nft's, some only the legacy one."""
        recorded = self.place.recorded("iptables")
        probe = f"{self._chain}-PROBE"
        for tool in [recorded, *_TOOLS] if recorded else _TOOLS:
            iptables = [tool, "-w", "-t", "nat"]
            if not shutil.which(tool) or not succeeds([*iptables, "-N", probe]):
                continue
            works = succeeds([*iptables, "-A", probe, "-s", "192.0.2.1", "-j", "MASQUERADE"])
            run([*iptables, "-F", probe])
            run([*iptables, "-X", probe])
            if works:
                return self.place.record("iptables", tool)
        raise TestbedError(
            f"no iptables works on this kernel (tried {', '.join(_TOOLS)}): containers could reach nothing"
        )


def _routes(*selector: str) -> list[dict[str, object]]:
    routes: list[dict[str, object]] = json.loads(run(["ip", "-json", "-4", "route", "show", *selector]))
    return routes


def _overlaps_a_route(candidate: ipaddress.IPv4Network) -> bool:
    known = [str(route["dst"]) for route in _routes() if route["dst"] != "default"]
    return any(candidate.overlaps(ipaddress.IPv4Network(network)) for network in known)


def _free_range() -> str:
    for candidate in _RANGES:
        if not _overlaps_a_route(ipaddress.IPv4Network(candidate)):
            return candidate
    raise TestbedError(f"every address range for containers overlaps a route of this machine: {', '.join(_RANGES)}")


def _others_forward() -> bool:
    """Whether another bridge (of an engine, of VMs) may need forwarding by now; then it is left on."""
    return any(path.joinpath("bridge").is_dir() for path in Path("/sys/class/net").iterdir())
