"""The programs of Kubernetes, compiled out of Debian's source package: no Debian release ships them as binaries.

Debian 12's package `kubernetes` holds the whole tree of 1.20 with all that it imports, so nothing but apt is asked.
A compiled set is kept in the cache, and `up` compiles again only what is missing there.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from bed.carry import SUITE, debian_mirror
from bed.errors import TestbedError
from bed.packages import install
from bed.place import Place
from bed.shell import run
from bed.steps import Steps

PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")

_PACKAGES = ("dpkg-dev", "golang-go")
"""Only to compile: 400 MB that a machine with a cache does not need."""
_COMPILE_DEADLINE_S = 3600.0
_TREE = "k8s.io/kubernetes"
_OPENAPI = "pkg/generated/openapi/zz_generated.openapi.go"
_OPENAPI_TAG = "+k8s:openapi-gen="


@dataclass(frozen=True, slots=True)
class Programs:
    """The four of them, in the cache."""

    place: Place

    @property
    def folder(self) -> Path:
        return self.place.cache / "kubernetes"

    @property
    def version(self) -> str | None:
        """That of the source package, such as 1.20.5+really1.20.2-1.1; None where nothing was compiled yet."""
        return self._version_file.read_text().strip() if self._version_file.exists() else None

    def path(self, program: str) -> Path:
        return self.folder / program

    def missing(self) -> list[str]:
        return [program for program in PROGRAMS if not self.path(program).exists()]

    def ensure(self, steps: Steps) -> None:
        """Compile what is missing. What a killed `up` had fetched and compiled is gone on with.

        Raises:
            TestbedError: The source could not be fetched, or does not compile.
        """
        workshop = self.place.state / "kubernetes-build"
        if missing := self.missing():
            install(_PACKAGES, steps)
            self.folder.mkdir(exist_ok=True)
            source = _Source(workshop)
            if not source.tree.exists():
                with steps.step("kubernetes: source fetched"):
                    source.fetch()
            version = source.version()
            if version != self.version:
                self._forget_programs()  # of another version: the four are to be of one
                missing = list(PROGRAMS)
                self._version_file.write_text(version + "\n")
            for program in missing:
                with steps.step(f"kubernetes: {program} {version} compiled"):
                    if program == "kube-apiserver":
                        source.generate_openapi()
                    part = self.path(f"{program}.part")
                    source.compile(program, part, version)
                    part.rename(self.path(program))  # one with its final name is a whole one
        if workshop.exists():
            shutil.rmtree(workshop)

    def _forget_programs(self) -> None:
        for program in PROGRAMS:
            self.path(program).unlink(missing_ok=True)

    @property
    def _version_file(self) -> Path:
        return self.folder / "version"


@dataclass(frozen=True, slots=True)
class _Source:
    """The tree where Go looks for it without modules: $GOPATH/src/k8s.io/kubernetes."""

    workshop: Path

    @property
    def tree(self) -> Path:
        return self.workshop / "go" / "src" / _TREE

    def fetch(self) -> None:
        """By apt, with package lists of its own: those of the machine stay without sources, as they are."""
        unpacked = self.workshop / "unpacked"
        shutil.rmtree(unpacked, ignore_errors=True)
        unpacked.mkdir(parents=True)
        sources, lists = self.workshop / "sources.list", self.workshop / "lists"
        (lists / "partial").mkdir(parents=True, exist_ok=True)
        sources.write_text(f"deb-src {debian_mirror()} {SUITE} main\n")
        settings = {
            "Dir::Etc::SourceList": sources,
            "Dir::Etc::SourceParts": "-",
            "Dir::State::Lists": lists,
            "Dir::Cache::PkgCache": "",
            "Dir::Cache::SrcPkgCache": "",
            "APT::Sandbox::User": "root",  # apt's own user may not enter our folder
            "Acquire::Retries": "3",
        }
        apt = ["apt-get", *(word for name, value in settings.items() for word in ("-o", f"{name}={value}"))]
        run([*apt, "update"])
        # Through env, for its working folder: apt unpacks where it is.
        run(["env", f"--chdir={unpacked}", *apt, "source", "kubernetes"])
        trees = [folder for folder in unpacked.iterdir() if folder.is_dir()]
        if len(trees) != 1:
            raise TestbedError(f"source package kubernetes: one folder expected (found={sorted(trees)})")
        self.tree.parent.mkdir(parents=True, exist_ok=True)
        trees[0].rename(self.tree)

    def version(self) -> str:
        return run(["dpkg-parsechangelog", f"--file={self.tree}/debian/changelog", "--show-field=Version"]).strip()

    def generate_openapi(self) -> None:
        """The one generated file that the package leaves out, and the API server does not compile without."""
        target = self.tree / _OPENAPI
        if target.exists():
            return
        generator = self.workshop / "openapi-gen"
        self._go("build", "-o", str(generator), f"{_TREE}/vendor/k8s.io/kube-openapi/cmd/openapi-gen")
        header = self.tree / "vendor/k8s.io/code-generator/hack/boilerplate.go.txt"
        self._in_tree(
            generator,
            f"--input-dirs={','.join(openapi_packages(self.tree))}",
            f"--output-package={Path(_TREE, _OPENAPI).parent}",
            f"--output-file-base={target.stem}.new",
            f"--go-header-file={header}",
            f"--report-filename={self.workshop / 'openapi-violations'}",
        )
        target.with_name(f"{target.stem}.new.go").rename(target)

    def compile(self, program: str, to: Path, version: str) -> None:
        upstream = upstream_version(version)
        major, minor = upstream.split(".")[:2]
        known = {"gitVersion": f"v{upstream}", "gitMajor": major, "gitMinor": minor, "gitTreeState": "archive"}
        # -s -w: without tables for debuggers, a third of the size.
        flags = ["-s", "-w"]
        for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version"):
            flags += [f"-X {_TREE}/vendor/{package}.{name}={value}" for name, value in known.items()]
        self._go("build", "-trimpath", "-ldflags", " ".join(flags), "-o", str(to), f"{_TREE}/cmd/{program}")

    def _go(self, *words: str) -> None:
        self._in_tree("go", *words)

    def _in_tree(self, *argv: str | Path) -> None:
        settings = {
            "GOPATH": str(self.workshop / "go"),
            "GOCACHE": str(self.workshop / "go-cache"),
            "GO111MODULE": "off",
            "GOFLAGS": "",
            "CGO_ENABLED": "0",
            "HOME": str(self.workshop),
        }
        run(["env", f"--chdir={self.tree}", *argv], env=settings, timeout_s=_COMPILE_DEADLINE_S)


def upstream_version(version: str) -> str:
    """What Debian's 1.20.5+really1.20.2-1.1 is: 1.20.2."""
    return version.rpartition("really")[2].rpartition("-")[0].partition("+")[0]


def openapi_packages(tree: Path) -> list[str]:
    """Import paths of the packages that describe the API; those of `staging` by the name they are vendored as."""
    return sorted(set(_openapi_packages(tree)))


def _openapi_packages(tree: Path) -> Iterable[str]:
    roots = {tree / "pkg": f"{_TREE}/pkg", tree / "cmd": f"{_TREE}/cmd"}
    roots |= {tree / "staging/src/k8s.io": f"{_TREE}/vendor/k8s.io"}
    for root, name in roots.items():
        for file in root.rglob("*.go"):
            below = file.parent.relative_to(root)
            if any(part.startswith(("example", "test", "_")) for part in below.parts):
                continue
            if _OPENAPI_TAG in file.read_text(errors="replace"):
                yield f"{name}/{below}"
