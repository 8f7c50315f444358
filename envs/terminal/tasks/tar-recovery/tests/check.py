import hashlib
import unittest
from pathlib import Path

MANIFEST = {}
for line in Path("/tests/MANIFEST.sha256").read_text().splitlines():
    digest, _, name = line.partition("  ")
    MANIFEST[name] = digest
# Overwritten in its middle, and cut off at the end: their bytes are gone.
LOST = ["docs/notes.txt", "zz/tail.bin"]


class Recovery(unittest.TestCase):
    def test_whatever_is_whole_is_restored(self):
        root = Path("/app/restored")
        found = {
            str(p.relative_to(root)): hashlib.sha256(p.read_bytes()).hexdigest() for p in root.rglob("*") if p.is_file()
        }
        self.assertEqual(found, {name: digest for name, digest in MANIFEST.items() if name not in LOST})

    def test_the_rest_is_named(self):
        self.assertEqual(Path("/app/lost.txt").read_text().splitlines(), LOST)


unittest.main(verbosity=2)
