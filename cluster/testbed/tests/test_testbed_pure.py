"""What the test bed decides before it touches the machine."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path

import pytest
from bed.carry import Carried, pip_settings
from bed.errors import TestbedError
from bed.mounts import leftovers, parse
from bed.part import Bed, Part, in_order
from bed.place import Place

MOUNTS = """\
21 1 254:0 / / rw - ext4 /dev/vda rw
22 21 0:5 / /proc rw - proc proc rw
30 21 254:0 /var/lib/bed/docker /var/lib/bed/docker rw - ext4 /dev/vda rw
31 30 0:40 / /var/lib/bed/docker/overlay2/a/merged rw - overlay overlay rw
32 31 0:41 / /var/lib/bed/docker/overlay2/a/merged/with\\040space rw - tmpfs tmpfs rw
33 21 254:16 / /var/lib/bed/containerd rw - ext4 /dev/vdb rw
"""


def test_leftover_mounts_come_deepest_first_with_the_folder_that_dockerd_mounts_onto_itself():
    merged = "/var/lib/bed/docker/overlay2/a/merged"
    found = leftovers(parse(MOUNTS), Path("/var/lib/bed/docker"))
    assert [str(point) for point in found] == [f"{merged}/with space", merged, "/var/lib/bed/docker"]


def test_a_disk_that_somebody_mounted_for_us_is_no_leftover():
    assert leftovers(parse(MOUNTS), Path("/var/lib/bed/containerd")) == []


def test_a_bind_mount_from_elsewhere_is_no_leftover():
    volume = "34 21 254:0 /data/fast /var/lib/bed/docker rw - ext4 /dev/vda rw\n"
    assert leftovers(parse("21 1 254:0 / / rw - ext4 /dev/vda rw\n" + volume), Path("/var/lib/bed/docker")) == []


def test_pip_variables_win_over_files_and_later_files_over_earlier_ones():
    files = ["[global]\nindex-url = https://a.example/simple\ntimeout = 5\n", "[install]\ntimeout = 60\n"]
    settings = pip_settings(files, {"PIP_INDEX_URL": "https://b.example/simple", "PIP_NO_COLOR": "1"})
    assert settings == {"index-url": "https://b.example/simple", "timeout": "60"}


def test_the_same_carried_files_give_the_same_bytes():
    one = Carried({Path("/etc/b"): b"2", Path("/etc/a"): b"1"}, {})
    other = Carried({Path("/etc/a"): b"1", Path("/etc/b"): b"2"}, {})
    assert one.as_tar() == other.as_tar()


class Nothing(Part):
    def __init__(self, name: str, needs: tuple[str, ...] = ()) -> None:
        self.name, self.needs = name, needs

    def up(self, bed: Bed) -> None: ...

    def down(self, bed: Bed) -> None: ...

    def is_running(self, bed: Bed) -> bool:
        return False

    def facts(self, bed: Bed) -> Mapping[str, object]:
        return {}


def test_what_a_part_needs_comes_before_it_and_once():
    parts = [Nothing("cluster", ("engine",)), Nothing("engine"), Nothing("store", ("engine",))]
    known = {part.name: part for part in parts}
    assert list(in_order(["cluster", "store"], known)) == ["engine", "cluster", "store"]


def test_an_unknown_part_is_refused_with_the_known_ones():
    with pytest.raises(TestbedError, match=r"unknown part \(name='dokcer', known=\['docker'\]\)"):
        in_order(["dokcer"], {"docker": Nothing("docker")})


def test_a_port_stays_the_same_until_somebody_else_has_it(tmp_path: Path):
    place = Place(state=tmp_path / "state", run=tmp_path / "run")
    place.make()
    port = place.loopback_port("engine")
    assert place.loopback_port("engine") == port
    with socket.create_server(("127.0.0.1", port)):
        assert place.loopback_port("engine") != port
