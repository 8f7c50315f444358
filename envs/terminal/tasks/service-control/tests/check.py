import hashlib
import os
import socket
import subprocess
import time
import unittest
import urllib.request
from pathlib import Path

APP = Path("/app")
PID = APP / "server.pid"
CONFIG = APP / "config.ini"
SERVER_SHA256 = "c18b71f77098331f195223b667a444f3d99f2e6e98425fa09d0c621522cadd26"


def ctl(*arguments):
    return subprocess.run(
        ["sh", "/app/ctl.sh", *arguments], cwd="/", stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=90
    )


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def servers():
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"/app/server.py" in words and b"python" in words[0]:
                found.append(int(entry.name))
    return found


class Control(unittest.TestCase):
    def setUp(self):
        self.port = free_port()
        CONFIG.write_text(f"# status server\n  host=127.0.0.1\n\nport   =   {self.port}   # changes\n")
        PID.unlink(missing_ok=True)
        self.addCleanup(self.sweep)

    def sweep(self):
        for pid in servers():
            os.kill(pid, 9)
        PID.unlink(missing_ok=True)

    def answer(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/", timeout=30) as reply:
            return int(reply.read())

    def start(self):
        result = ctl("start")
        self.assertEqual(result.returncode, 0, result)
        return self.answer()

    def other_program(self):
        process = subprocess.Popen(["sleep", "600"])
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def test_start_answers_at_once_and_status_tells(self):
        pid = self.start()
        self.assertEqual(int(PID.read_text()), pid)
        status = ctl("status")
        self.assertEqual((status.stdout, status.returncode), (f"running {pid}\n", 0))

    def test_start_twice_leaves_the_first(self):
        pid = self.start()
        second = ctl("start")
        self.assertEqual((second.returncode, "already running" in second.stdout), (0, True))
        self.assertEqual((self.answer(), servers()), (pid, [pid]))

    def test_stop(self):
        pid = self.start()
        self.assertEqual(ctl("stop").returncode, 0)
        self.assertFalse(alive(pid))
        self.assertFalse(PID.exists())
        status = ctl("status")
        self.assertEqual((status.stdout, status.returncode), ("stopped\n", 3))

    def test_stop_when_none_runs(self):
        self.assertEqual(ctl("stop").returncode, 0)

    def test_a_server_that_ignores_the_signal_is_killed(self):
        pid = self.start()
        os.kill(pid, 19)
        began = time.monotonic()
        self.assertEqual(ctl("stop").returncode, 0)
        self.assertFalse(alive(pid))
        self.assertGreater(time.monotonic() - began, 3)

    def test_restart(self):
        first = self.start()
        self.assertEqual(ctl("restart").returncode, 0)
        self.assertNotEqual(self.answer(), first)
        self.assertEqual(len(servers()), 1)

    def test_the_port_is_taken(self):
        with socket.socket() as holder:
            holder.bind(("127.0.0.1", self.port))
            holder.listen()
            result = ctl("start")
        self.assertEqual(result.returncode, 1)
        self.assertFalse(PID.exists())
        self.assertEqual(servers(), [])

    def test_another_web_server_has_the_port(self):
        other = subprocess.Popen(
            ["python3", "-m", "http.server", "--bind", "127.0.0.1", str(self.port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/tests",
        )
        self.addCleanup(other.wait)
        self.addCleanup(other.kill)
        for _ in range(1200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    break
            time.sleep(0.05)
        self.assertEqual(ctl("start").returncode, 1)
        self.assertEqual(servers(), [])
        self.assertIsNone(other.poll())

    def test_an_empty_pid_file(self):
        PID.write_text("")
        self.assertEqual(ctl("status").returncode, 3)
        self.start()

    def test_the_pid_of_nobody(self):
        process = self.other_program()
        process.kill()
        process.wait()
        PID.write_text(f"{process.pid}\n")
        self.assertEqual(ctl("status").returncode, 3)
        self.start()

    def test_the_pid_of_another_program(self):
        process = self.other_program()
        PID.write_text(f"{process.pid}\n")
        self.assertEqual(ctl("status").returncode, 3)
        self.assertEqual(ctl("stop").returncode, 0)
        self.assertIsNone(process.poll())
        PID.write_text(f"{process.pid}\n")
        self.start()
        self.assertIsNone(process.poll())

    def test_usage(self):
        for arguments in ((), ("explode",)):
            result = ctl(*arguments)
            self.assertEqual((result.returncode, result.stdout), (2, ""))
            self.assertTrue(result.stderr)

    def test_the_server_itself_is_unchanged(self):
        self.assertEqual(hashlib.sha256((APP / "server.py").read_bytes()).hexdigest(), SERVER_SHA256)


unittest.main(verbosity=2)
