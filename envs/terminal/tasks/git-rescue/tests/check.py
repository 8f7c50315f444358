import hashlib
import json
import os
import unittest
from pathlib import Path

SITE = Path("/app/site")
EXPECTED = json.loads(Path("/tests/expected.json").read_text())


class Rescue(unittest.TestCase):
    def test_the_branch(self):
        self.assertEqual((SITE / ".git/refs/heads/main").read_text(), EXPECTED["main"] + "\n")
        self.assertEqual((SITE / ".git/HEAD").read_text(), "ref: refs/heads/main\n")
        self.assertEqual((SITE / ".git/refs/heads/sale").read_text().strip(), EXPECTED["sale"])

    def test_the_files(self):
        found = {}
        for folder, folders, names in os.walk(SITE):
            if ".git" in folders:
                folders.remove(".git")
            for name in names:
                path = Path(folder, name)
                found[str(path.relative_to(SITE))] = [path.read_text(), os.access(path, os.X_OK)]
        self.assertEqual(found, EXPECTED["files"])

    def test_the_objects_are_all_there(self):
        root = SITE / ".git/objects"
        for name, digest in EXPECTED["objects"].items():
            self.assertEqual(hashlib.sha256((root / name).read_bytes()).hexdigest(), digest, name)


unittest.main(verbosity=2)
