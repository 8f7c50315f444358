"""Base images without an image registry: each made once out of Debian packages and kept as an archive."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bed import rootfs
from bed.carry import SUITE, Carried
from bed.engine import Engine
from bed.place import Place
from bed.steps import Steps

_RECIPE_LABEL = "rayroll.testbed.recipe"
_FOLDER = Path(__file__).parent.parent / "images"


@dataclass(frozen=True, slots=True)
class Kitchen:
    """What recipes cook with."""

    place: Place
    engine: Engine
    carried: Carried

    def import_root(self, image: str, archive: bytes, *, command: str, env: Mapping[str, str], key: str) -> None:
        """Turn an archive of a root file system into an image of one layer."""
        settings = [f'CMD ["{command}"]', f"LABEL {_RECIPE_LABEL}={key}", *(f'ENV {k}="{v}"' for k, v in env.items())]
        words = [word for setting in settings for word in ("--change", setting)]
        self.engine.docker("import", *words, "-", image, stdin=archive)


class Recipe(ABC):
    """One base image."""

    image: str

    @abstractmethod
    def text(self, kitchen: Kitchen) -> bytes:
        """Everything that decides what the image contains: when it changes, the image is made anew."""

    @abstractmethod
    def cook(self, kitchen: Kitchen, key: str) -> None:
        """Make the image in the engine, labelled with `key`."""


class Busybox(Recipe):
    """One static binary, 2 MB: the image that starts fastest. It has a user `agent` with uid 1000."""

    image = "busybox:latest"

    def text(self, kitchen: Kitchen) -> bytes:
        return rootfs.busybox()

    def cook(self, kitchen: Kitchen, key: str) -> None:
        path = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
        kitchen.import_root(self.image, rootfs.busybox(), command="sh", env=path, key=key)


class Debian(Recipe):
    """What debootstrap makes, slimmed as Debian's own image is, and able to fetch what this machine can fetch."""

    image = f"debian:{SUITE}-slim"

    def text(self, kitchen: Kitchen) -> bytes:
        return rootfs.DEBIAN_RECIPE + repr(sorted(kitchen.carried.env.items())).encode() + kitchen.carried.as_tar()

    def cook(self, kitchen: Kitchen, key: str) -> None:
        archive = rootfs.debian(kitchen.place, kitchen.carried)
        kitchen.import_root(self.image, archive, command="bash", env=kitchen.carried.env, key=key)


@dataclass(frozen=True, slots=True)
class Built(Recipe):
    """`docker build` of one of the Dockerfiles here. The images it builds on are part of its recipe."""

    image: str
    dockerfile: str
    bases: Sequence[Recipe]

    def text(self, kitchen: Kitchen) -> bytes:
        return b"".join([base.text(kitchen) for base in self.bases] + [(_FOLDER / self.dockerfile).read_bytes()])

    def cook(self, kitchen: Kitchen, key: str) -> None:
        text = (_FOLDER / self.dockerfile).read_bytes()
        kitchen.engine.docker("build", "--label", f"{_RECIPE_LABEL}={key}", "--tag", self.image, "-", stdin=text)


_BUSYBOX = Busybox()
_DEBIAN = Debian()
PAUSE = Built("rayroll-testbed/pause:latest", "pause.Dockerfile", (_BUSYBOX,))
"""What a pod's network lives in."""
MACHINE = Built("rayroll-testbed/machine:latest", "machine.Dockerfile", (_DEBIAN,))
"""What an instance of the EC2 stand-in boots."""
_WAVES: Sequence[Sequence[Recipe]] = (
    (_BUSYBOX, _DEBIAN),
    (
        Built("python:3.11-slim", "python.Dockerfile", (_DEBIAN,)),
        Built("rayroll-testbed/musl:latest", "musl.Dockerfile", (_DEBIAN, _BUSYBOX)),
    ),
)


def ensure_all(kitchen: Kitchen, steps: Steps) -> None:
    """Have every base image in the engine. Those of one wave build on nothing in it and are made side by side."""
    for wave in _WAVES:
        with ThreadPoolExecutor() as pool:
            for done in [pool.submit(ensure, recipe, kitchen, steps) for recipe in wave]:
                done.result()
    kitchen.engine.remove_build_stages()


def ensure(recipe: Recipe, kitchen: Kitchen, steps: Steps) -> None:
    """The engine has it; or it is loaded from the cache; or it is made, and put into the cache."""
    key = hashlib.sha256(recipe.text(kitchen)).hexdigest()[:12]
    engine = kitchen.engine
    if engine.inspect_image(recipe.image, f'{{{{index .Config.Labels "{_RECIPE_LABEL}"}}}}') == key:
        return
    stem = recipe.image.replace("/", "_").replace(":", "_")
    folder = kitchen.place.cache / "images"
    folder.mkdir(exist_ok=True)
    archive = folder / f"{stem}-{key}.tar"
    if archive.exists():
        with steps.step(f"image {recipe.image}: loaded from the cache"):
            engine.docker("load", "--input", archive)
        return
    with steps.step(f"image {recipe.image}: made"):
        recipe.cook(kitchen, key)
    with steps.step(f"image {recipe.image}: kept in the cache"):
        part = archive.with_suffix(".part")  # an archive with its final name is a whole one
        engine.docker("save", "--output", part, recipe.image)
        for old in folder.glob(f"{stem}-*.tar"):
            old.unlink()
        part.rename(archive)
