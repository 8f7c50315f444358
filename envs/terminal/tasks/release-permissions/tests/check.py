import hashlib
import json
import os
import stat
import unittest
from pathlib import Path

ROOT = Path("/app/release")
EXPECTED = json.loads(Path("/tests/contents.json").read_text())


def described(path):
    if path.is_symlink():
        return f"link {os.readlink(path)}"
    if path.is_dir():
        return "folder"
    return f"file {hashlib.sha256(path.read_bytes()).hexdigest()}"


def demanded(path):
    secret = "secrets" in path.relative_to(ROOT).parts[:1]
    if path.is_dir():
        return 0o700 if secret else 0o755
    if secret:
        return 0o600
    start = path.read_bytes()[:4]
    return 0o755 if start[:2] == b"#!" or start == b"\x7fELF" else 0o644


class Release(unittest.TestCase):
    def test_nothing_is_added_removed_renamed_or_edited(self):
        found = {str(p.relative_to(ROOT)): described(p) for p in [ROOT, *ROOT.rglob("*")]}
        self.assertEqual(found, EXPECTED)

    def test_modes(self):
        for name, kind in EXPECTED.items():
            path = ROOT / name
            with self.subTest(name):
                self.assertEqual(described(path), kind)
                self.assertEqual(oct(stat.S_IMODE(path.lstat().st_mode)), oct(demanded(path)))


unittest.main(verbosity=2)
