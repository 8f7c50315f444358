"""Where logs lie: in the homes of those who ran an agent, or in any folder that somebody names."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from rayroll.errors import ConfigError
from rayroll.traces.formats import LogFormat, Source, formats

__all__ = ["ENDINGS", "Found", "Logs", "default_roots", "find_logs", "homes_of", "source_of"]

ENDINGS = (".jsonl", ".jsonl.zst", ".jsonl.gz")


class Found(NamedTuple):
    """A log that is there."""

    path: str
    root: Path
    """The folder of logs that it was found in."""

    def source(self) -> Source:
        """Whose log it is."""
        return source_of(Path(self.path), self.root)


class Logs:
    """Logs that are there, in an order that does not depend on the file system.

    Of each only its name is kept: there may be tens of thousands, and collect is to take no more memory for them.
    """

    def __init__(self) -> None:
        self._in_folders: list[tuple[Path, str, list[str]]] = []

    def add(self, root: Path, folder: str, names: list[str]) -> None:
        """Some of the same folder."""
        if names:
            self._in_folders.append((root, folder, names))

    def __len__(self) -> int:
        return sum(len(names) for _, _, names in self._in_folders)

    def __iter__(self) -> Iterator[Found]:
        for root, folder, names in self._in_folders:
            for name in names:
                yield Found(f"{folder}/{name}", root)


def homes_of(*, all_users: bool = False, env: Mapping[str, str] = os.environ) -> list[Path]:
    """This user's home; with ``all_users``, every home of this machine."""
    homes = [Path(env.get("HOME") or Path.home())]
    if all_users:
        import pwd

        homes += [Path(entry.pw_dir) for entry in pwd.getpwall()]
        homes += sorted(Path("/home").glob("*"))
    return [home for home in dict.fromkeys(homes) if home != Path("/") and _is_dir(home)]


def default_roots(
    homes: Iterable[Path], on_error: Callable[[str, str], None], *, env: Mapping[str, str] = os.environ
) -> list[Path]:
    """The agents' folders in the homes, and those that ``CLAUDE_CONFIG_DIR`` and ``CODEX_HOME`` name; existing ones.

    A home that may not be looked into is told to ``on_error``.
    """
    roots = []
    for home in homes:
        if not os.access(home, os.R_OK | os.X_OK):
            on_error(str(home), "this home may not be read")
        roots += [home / store / folder for one in formats() for store, folder in one.folders]
    for one in formats():
        stores = [Path(part) for part in env.get(one.home_variable, "").split(",") if part]
        roots += [store / folder for store in stores for _, folder in one.folders]
    return [root for root in dict.fromkeys(roots) if _is_dir(root)]


def find_logs(roots: Iterable[Path], on_error: Callable[[str, str], None], *, but: Iterable[Path] = ()) -> Logs:
    """Every log below the roots, but for some files, once each.

    A root may be a home (only the agents' folders in it are looked at), an agent's folder, or any other folder (all of
    it is), or one log. What cannot be listed is told to ``on_error`` as path and reason.

    Raises:
        ConfigError: A root does not exist.
    """
    logs = Logs()
    seen = {_file(path.stat()) for path in but if path.exists()}

    def is_new(path: str) -> bool:
        try:
            file = _file(os.stat(path))  # noqa: PTH116 - the parts of a Path stay in memory
        except OSError as error:
            on_error(path, str(error))
            return False
        known = file in seen
        seen.add(file)
        return not known

    for root in sorted(root.expanduser() for root in roots):
        if not root.exists():
            raise ConfigError(
                "there is no such folder of logs", root=str(root), fix="name a home, such as ~, or a folder"
            )
        for folder in _folders(root):
            of = folder if folder.is_dir() else folder.parent
            for here, names in _walk(folder, on_error):
                logs.add(of, here, [name for name in names if is_new(f"{here}/{name}")])
    return logs


def _file(status: os.stat_result) -> int:
    """The same for two names of one file, and smaller than a pair."""
    return status.st_dev << 64 | status.st_ino


def _folders(root: Path) -> list[Path]:
    places = [(store, folder) for one in formats() for store, folder in one.folders]
    below = [root / store / folder for store, folder in places]
    within = [root / folder for store, folder in places if root.name == Path(store).name]
    return list(dict.fromkeys(folder for folder in below + within if _is_dir(folder))) or [root]


def _is_dir(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # below a folder that may not be read
        return False


def _walk(folder: Path, on_error: Callable[[str, str], None]) -> Iterator[tuple[str, list[str]]]:
    if folder.is_file():
        yield str(folder.parent), [folder.name]
        return
    for here, folders, names in os.walk(folder, onerror=lambda error: on_error(str(error.filename), str(error))):
        folders.sort()
        yield here, sorted(name for name in names if name.endswith(ENDINGS))


def source_of(path: Path, root: Path) -> Source:
    """Whose log it is, by where it lies; below none of the agents' folders, the root stands for the home."""
    for one in formats():
        for store, folder in one.folders:
            parts = (*Path(store).parts, folder)
            for at in range(len(path.parts) - len(parts), 0, -1):
                if path.parts[at : at + len(parts)] == parts:
                    home, below = Path(*path.parts[:at]), path.parts[at + len(parts) :]
                    return _source(path, home, store, below, one, home.name)
    below = path.relative_to(root).parts if path.is_relative_to(root) else (path.name,)
    if root.name in {folder for one in formats() for _, folder in one.folders}:  # a store of another name
        home = root.parent.parent
        return _source(path, home, root.parent.name, below, None, home.name)
    return _source(path, root, "", below, None, root.name)


def _source(path: Path, home: Path, store: str, below: tuple[str, ...], one: LogFormat | None, name: str) -> Source:
    below = (*below[:-1], path.name.removesuffix(".zst").removesuffix(".gz").removesuffix(".jsonl"))
    # Logs that lie loosely in a folder: the folder is the project.
    nested = len(below) > 1
    project = below[0] if nested else name
    key = "/".join(below[1:] if nested and (one is None or one.has_projects) else below)
    return Source(path, str(home), home.name, store, project, key)
