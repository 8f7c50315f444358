import os
import subprocess
import tempfile
import unittest
from pathlib import Path


class Backup(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.base = Path(folder.name)
        self.source = self.base / "source"
        self.target = self.base / "target"
        self.source.mkdir()

    def put(self, name, text="x\n"):
        path = self.source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def run_script(self, *arguments, stamp="2025-01-05", cwd="/"):
        arguments = arguments or (self.source, self.target, "3")
        env = {"PATH": os.defpath, "HOME": "/", **({"BACKUP_STAMP": stamp} if stamp else {})}
        command = ["sh", "/app/backup.sh", *map(str, arguments)]
        return subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, timeout=30)

    def tree(self):
        return {str(p.relative_to(self.target)): p.read_text() for p in self.target.rglob("*") if p.is_file()}

    def assert_copied(self, result, count):
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout.strip().splitlines()[-1], str(count))

    def test_paths_below_the_source_are_kept(self):
        self.put("a.conf", "1")
        self.put("deep/er/a.conf", "2")
        self.put("deep/other.txt", "3")
        self.put("aconf", "4")
        self.assert_copied(self.run_script(), 2)
        self.assertEqual(self.tree(), {"2025-01-05/a.conf": "1", "2025-01-05/deep/er/a.conf": "2"})

    def test_any_name(self):
        names = ["my file.conf", "it's \"q\".conf", "*.conf", "-rf.conf", "two\nlines.conf", "$(touch x).conf", " .conf"]
        for name in names:
            self.put(name, name)
            self.put(f"dir {name[:3]}/{name}", name)
        self.assert_copied(self.run_script(), 2 * len(names))
        self.assertEqual({p.split("/")[-1] for p in self.tree()}, set(names))
        self.assertEqual(len(self.tree()), 2 * len(names))

    def test_folders_and_links_named_like_files(self):
        self.put("real.conf")
        (self.source / "folder.conf").mkdir()
        self.assert_copied(self.run_script(), 1)

    def test_source_and_target_with_blanks_and_relative(self):
        self.put("a.conf")
        (self.base / "my source").mkdir()
        (self.base / "my source" / "b.conf").write_text("b")
        self.target = self.base / "my target"
        self.assert_copied(self.run_script("my source", "my target", "2", cwd=self.base), 1)
        self.assertEqual(self.tree(), {"2025-01-05/b.conf": "b"})

    def test_source_with_a_trailing_slash(self):
        self.put("sub/a.conf", "1")
        self.assert_copied(self.run_script(f"{self.source}/", self.target, "3"), 1)
        self.assertEqual(self.tree(), {"2025-01-05/sub/a.conf": "1"})

    def test_the_newest_are_kept(self):
        self.put("a.conf")
        for stamp in ("2025-01-01", "2025-01-02", "2025-01-03", "2024-12-31 x"):
            (self.target / stamp).mkdir(parents=True)
            (self.target / stamp / "old.conf").write_text("old")
        (self.target / "0-note.txt").write_text("keep me")
        self.assert_copied(self.run_script(self.source, self.target, "3"), 1)
        self.assertEqual(
            sorted(p.name for p in self.target.iterdir()), ["0-note.txt", "2025-01-02", "2025-01-03", "2025-01-05"]
        )

    def test_fewer_than_kept(self):
        self.put("a.conf")
        self.run_script(stamp="2025-01-01")
        self.assert_copied(self.run_script(stamp="2025-01-02"), 1)
        self.assertEqual(len(list(self.target.iterdir())), 2)

    def test_time_as_stamp(self):
        self.put("a.conf")
        self.assert_copied(self.run_script(stamp=None), 1)
        self.assertRegex(next(self.target.iterdir()).name, r"^\d{8}-\d{6}$")

    def test_nothing_to_copy(self):
        self.put("a.txt")
        result = self.run_script()
        self.assertEqual(result.returncode, 1)
        self.assertTrue(result.stderr)
        self.assertFalse(self.target.exists())

    def test_no_source(self):
        (self.target / "2025-01-01").mkdir(parents=True)
        result = self.run_script(self.base / "missing", self.target, "1")
        self.assertEqual(result.returncode, 1)
        self.assertTrue(result.stderr)
        self.assertEqual([p.name for p in self.target.iterdir()], ["2025-01-01"])

    def test_bad_arguments(self):
        self.put("a.conf")
        for arguments in (("s",), (self.source, self.target), *((self.source, self.target, k) for k in ("0", "x", "-1", ""))):
            with self.subTest(arguments):
                result = self.run_script(*arguments)
                self.assertEqual(result.returncode, 2)
                self.assertTrue(result.stderr)
                self.assertFalse(self.target.exists())

    def test_a_failed_copy_removes_nothing(self):
        self.put("a.conf")
        (self.target / "2025-01-01").mkdir(parents=True)
        # Where a file must go there is a file in the way of its folder.
        self.put("sub/b.conf")
        (self.target / "2025-01-05").mkdir()
        (self.target / "2025-01-05" / "sub").write_text("in the way")
        result = self.run_script(self.source, self.target, "1")
        self.assertEqual(result.returncode, 1)
        self.assertTrue((self.target / "2025-01-01").is_dir())


unittest.main(verbosity=2)
