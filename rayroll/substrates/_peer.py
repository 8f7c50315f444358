"""A runner that is not there: the other end of a simulated channel, speaking the runner's frames."""

from __future__ import annotations

import hashlib
import posixpath
import random
import re
import shlex
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from rayroll.runner.protocol import (
    CHUNK_BYTES,
    KEY_BYTES,
    VERSION,
    Flag,
    Frame,
    FrameType,
    Parser,
    Tag,
    decode_fields,
    encode_fields,
    encode_frame,
    number,
    numbers,
)
from rayroll.runner.tree import KEEP, Entry, pack_entries, unpack_entries
from rayroll.substrates import Channel, Receiver
from rayroll.substrates._profiles import Draw, Profile

__all__ = ["Clock", "Peer"]

TERMINATED = 128 + 15
ENOENT, EISDIR = 2, 21
REWARD = "/logs/verifier/reward.txt"
_PLAIN = re.compile(r"[A-Za-z0-9_./ -]*").fullmatch
"""Nothing in it that a shell would look at, so that its words are what lies between blanks."""


class Timer(Protocol):
    """A call that is due."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Time as the simulation needs it. The event loop's own by default; a virtual one can stand in."""

    def time(self) -> float:
        """Seconds, monotonic."""

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> Timer:
        """Call after so many seconds."""


@dataclass(slots=True)
class _Request:
    """What the runner knows of a request until its result is acknowledged."""

    upload: bytearray = field(default_factory=bytearray)
    fields: Mapping[int, bytes] = field(default_factory=dict)
    type: int = 0
    timer: Timer | None = None
    reply: list[tuple[int, bytes]] | None = None
    """Frames of the answer, once there is one."""


class Peer:
    """One simulated sandbox."""

    def __init__(
        self, profile: Profile, seed: str, clock: Clock, workdir: str, env: Mapping[str, str], lease_s: float
    ) -> None:
        self._profile = profile
        self._random = random.Random(seed)
        self._clock = clock
        self._env = {"PATH": "/usr/bin:/bin", "HOME": "/root", **env}
        self._cwd = workdir
        self._files: dict[bytes, Entry] = {}
        self._baseline: dict[bytes, Entry] = {}
        self._requests: dict[int, _Request] = {}
        self._channel: SimulatedChannel | None = None
        self._epoch = 0
        self._lease_s = lease_s
        self._lease_ends_s = clock.time() + lease_s
        self._lease: Timer = clock.call_later(lease_s, self._look_at_lease)
        self._solves = self._random.random() < profile.solve_share
        self.on_death: Callable[[], None] = lambda: None
        self.cause = ""
        """Why it ended; "" while it lives."""

    def open(self) -> SimulatedChannel:
        """A new stream to it; an older one ends."""
        if self._channel is not None:
            self._channel.end()
        self._channel = SimulatedChannel(self, self._clock)
        return self._channel

    def die(self, cause: str) -> None:
        """End, for that reason. Idempotent."""
        if self.cause:
            return
        self.cause = cause
        self._lease.cancel()
        for request in self._requests.values():
            if request.timer is not None:
                request.timer.cancel()
        self._requests.clear()
        if self._channel is not None:
            self._channel.end()
        self.on_death()

    def draw_s(self, phase: str) -> float:
        """How long a phase of this sandbox takes, in seconds."""
        draw: Draw = getattr(self._profile, phase)
        return draw.sample_s(self._random)

    def fails_to_start(self) -> bool:
        """Whether creating it fails."""
        return self._random.random() < self._profile.create_failure

    # frames

    def transport_s(self) -> float:
        """One way of a message."""
        return self._profile.transport.sample_s(self._random) / 2

    def take(self, channel: SimulatedChannel, frame: Frame) -> None:
        """One frame of the host."""
        if self.cause or channel is not self._channel:
            return
        if frame.type == FrameType.HELLO:
            self._clock.call_later(self._profile.hello.sample_s(self._random), self._greet, channel, frame)
            return
        if frame.epoch != self._epoch:
            return
        if frame.type == FrameType.LEASE and (lease_ms := number(decode_fields(frame.payload), Tag.LEASE_MS)):
            self._lease_s = lease_ms / 1000
        self._renew()
        match frame.type:
            case FrameType.LEASE:
                self._send(FrameType.LEASE_OK, frame.request_id, b"")
            case FrameType.SHUTDOWN:
                self.die("shutdown")
            case FrameType.EXEC | FrameType.PUT | FrameType.GET | FrameType.DIGEST:
                self._ask(frame)
            case FrameType.DATA:
                if frame.request_id in self._requests:
                    self._requests[frame.request_id].upload += frame.payload
                    self._send(FrameType.WANT, frame.request_id, encode_fields({Tag.BYTES: len(frame.payload)}))
            case FrameType.END:
                if frame.request_id in self._requests:
                    self._write_tree(frame.request_id, self._requests[frame.request_id])
            case FrameType.KILL_ALL:
                self._send(FrameType.RESULT, frame.request_id, encode_fields({Tag.COUNT: self._stop_all()}))
            case FrameType.BASELINE:
                self._baseline = dict(self._files)
                self._send(FrameType.RESULT, frame.request_id, encode_fields(self._digest()))
            case FrameType.RESET:
                self._stop_all()
                self._files = dict(self._baseline)
                self._send(FrameType.RESULT, frame.request_id, encode_fields(self._digest()))
            case FrameType.CANCEL:
                self._stop(frame.request_id, limit=3)
            case FrameType.ACK:
                self._requests.pop(frame.request_id, None)

    def _renew(self) -> None:
        self._lease_ends_s = self._clock.time() + self._lease_s

    def _look_at_lease(self) -> None:
        # Every frame renews it: a timer for each frame would cost more than the rest.
        left_s = self._lease_ends_s - self._clock.time()
        if left_s <= 0:
            self.die("lease")
        else:
            self._lease = self._clock.call_later(left_s, self._look_at_lease)

    def _greet(self, channel: SimulatedChannel, frame: Frame) -> None:
        if self.cause or channel is not self._channel:
            return
        if self._epoch == 0 and self._random.random() < self._profile.hello_failure:
            self.die("died before hello")
            return
        hello = decode_fields(frame.payload)
        self._epoch = frame.epoch
        self._lease_s = number(hello, Tag.LEASE_MS) / 1000
        self._renew()
        self._lease.cancel()
        self._look_at_lease()
        known = [id for id in numbers(hello.get(Tag.IDS, b"")) if id in self._requests]
        answer: dict[int, int | bytes] = {
            Tag.VERSION_MAX: VERSION,
            Tag.BUILD: b"simulated",
            Tag.PID: 1,
            Tag.UID: 0,
            Tag.IS_INIT: 1,
            Tag.SHELL: b"/bin/sh",
            Tag.MACHINE: b"simulated",
            Tag.KERNEL: b"simulated",
            Tag.CWD: self._cwd.encode(),
            Tag.ENV: b"".join(f"{name}={value}\0".encode() for name, value in self._env.items()),
            Tag.IDS: b"".join(id.to_bytes(4, "little") for id in known),
        }
        greeting = hello[Tag.NONCE] + encode_frame(FrameType.HELLO_OK, self._epoch, 0, encode_fields(answer))
        channel.send(greeting)
        for id in known:
            self._answer(id)

    def _send(self, type: int, request_id: int, payload: bytes) -> None:
        if self._channel is not None:
            self._channel.send(encode_frame(type, self._epoch, request_id, payload))

    def _answer(self, id: int) -> None:
        for type, payload in self._requests[id].reply or ():
            self._send(type, id, payload)

    def _finish(self, id: int, fields: Mapping[int, int | bytes], output: bytes = b"") -> None:
        request = self._requests[id]
        request.timer = None
        chunks = [output[at : at + CHUNK_BYTES] for at in range(0, len(output), CHUNK_BYTES)]
        request.reply = [(FrameType.OUTPUT, chunk) for chunk in chunks]
        request.reply.append((FrameType.RESULT, encode_fields(fields)))
        self._answer(id)

    def _fail(self, id: int, errno: int, reason: str) -> None:
        fields: dict[int, int | bytes] = {Tag.CODE: b"file", Tag.ERRNO: errno, Tag.REASON: reason.encode()}
        self._requests[id].reply = [(FrameType.ERROR, encode_fields(fields))]
        self._answer(id)

    # requests

    def _ask(self, frame: Frame) -> None:
        id, fields = frame.request_id, decode_fields(frame.payload)
        if id in self._requests:
            return  # sent again after a broken stream
        request = self._requests[id] = _Request(type=frame.type, fields=fields)
        if frame.type == FrameType.EXEC:
            self._start(id, request)
        elif frame.type == FrameType.GET:
            self._read_tree(id, fields)
        elif frame.type == FrameType.DIGEST:
            digest = hashlib.sha256(pack_entries(self._below(fields)))
            self._finish(id, {Tag.SHA256: digest.digest()})

    def _start(self, id: int, request: _Request) -> None:
        if self._random.random() < self._profile.death_per_command:
            self._clock.call_later(self._profile.run.sample_s(self._random) / 2, self.die, "exit 137")
            return
        if self._random.random() < self._profile.stream_break_per_command:
            assert self._channel is not None
            self._clock.call_later(self._profile.run.sample_s(self._random) / 2, self._channel.end)
        script = request.fields.get(Tag.SCRIPT) or request.fields.get(Tag.ARGV, b"").rstrip(b"\0").replace(b"\0", b" ")
        done = self._perform(script.decode(errors="replace"))
        spawn_s, drain_s = (draw.sample_s(self._random) for draw in (self._profile.spawn, self._profile.drain))
        limit_s = number(request.fields, Tag.TIMEOUT_MS) / 1000
        if limit_s and done.run_s > limit_s:
            done = replace(done, run_s=limit_s, exit_code=TERMINATED, limit=1, writes=None)
        request.timer = self._clock.call_later(spawn_s + done.run_s + drain_s, self._end, id, done, spawn_s, drain_s)

    def _end(self, id: int, done: _Done, spawn_s: float, drain_s: float) -> None:
        for path, text in (done.writes or {}).items():
            self._write(_normal(path.encode()), Entry(b"", "file", text.encode(), 0o644))
        request, output = self._requests[id], done.output.encode()
        head, tail = number(request.fields, Tag.HEAD_BYTES), number(request.fields, Tag.TAIL_BYTES)
        kept = output if len(output) <= head + tail else output[:head] + output[len(output) - tail :]
        fields: dict[int, int | bytes] = {
            Tag.EXIT_CODE: done.exit_code,
            Tag.SIGNAL: 15 if done.limit else 0,
            Tag.LIMIT: done.limit,
            Tag.OUTPUT_BYTES: len(output),
            Tag.HEAD_KEPT: min(head, len(kept)),
            Tag.STATE_SAVED: 1,
            Tag.QUEUED_NS: 0,
            Tag.SPAWN_NS: round(spawn_s * 1e9),
            Tag.RUN_NS: round(done.run_s * 1e9),
            Tag.DRAIN_NS: round(drain_s * 1e9),
        }
        self._finish(id, fields, kept)

    def _stop_all(self) -> int:
        ended = [id for id, request in self._requests.items() if request.timer is not None]
        for id in ended:
            self._stop(id, limit=5)
        return len(ended)

    def _digest(self) -> dict[int, int | bytes]:
        entries = [replace(entry, path=path) for path, entry in sorted(self._files.items())]
        return {Tag.SHA256: hashlib.sha256(pack_entries(entries)).digest(), Tag.COUNT: len(entries)}

    def _stop(self, id: int, limit: int) -> None:
        request = self._requests.get(id)
        if request is not None and request.timer is not None:
            request.timer.cancel()
            self._end(id, _Done("", TERMINATED, 0.0, limit), 0.0, 0.0)

    # a very small shell

    def _perform(self, text: str) -> _Done:
        run_s = self._profile.run.sample_s(self._random)
        for script in self._profile.scripts:
            if re.search(script.match, text):
                own_s = run_s if script.run is None else script.run.sample_s(self._random)
                return _Done(script.output, script.exit_code, own_s, writes=script.writes)
        if "/tests/test.sh" in text:
            return _Done("", 0 if self._solves else 1, run_s, writes={REWARD: "1" if self._solves else "0"})
        try:
            # shlex reads a character at a time: 15 % of a host's time when sandboxes take none.
            words = text.split() if _PLAIN(text) else shlex.split(text)
        except ValueError:
            return _Done("sh: syntax error\n", 2, run_s)
        return self._built_in(words, run_s)

    def _built_in(self, words: list[str], run_s: float) -> _Done:
        match words:
            case ["echo", *rest]:
                return _Done(" ".join(rest) + "\n", 0, run_s)
            case ["false"]:
                return _Done("", 1, run_s)
            case ["exit", code] if code.isdigit():
                return _Done("", int(code) % 256, run_s)
            case ["sleep", seconds] if re.fullmatch(r"\d+(\.\d+)?", seconds):
                return _Done("", 0, run_s + float(seconds))
            case ["pwd"]:
                return _Done(self._cwd + "\n", 0, run_s)
            case ["cat", path]:
                entry = self._files.get(_normal(posixpath.join(self._cwd, path).encode()))
                if entry is None or entry.kind != "file":
                    return _Done(f"cat: {path}: No such file or directory\n", 1, run_s)
                return _Done(entry.data.decode(errors="replace"), 0, run_s)
        return _Done("", 0, run_s)

    # files

    def _write_tree(self, id: int, request: _Request) -> None:
        base = request.fields[Tag.PATH]
        count = 0
        for entry in unpack_entries(bytes(request.upload)):
            self._write(_normal(base + b"/" + entry.path), entry)
            count += 1
        self._finish(id, {Tag.COUNT: count})

    def _write(self, path: bytes, entry: Entry) -> None:
        if entry.kind == "remove":
            for known in [p for p in self._files if p == path or p.startswith(path + b"/")]:
                del self._files[known]
            return
        parent = posixpath.dirname(path)
        while parent != b"/" and parent not in self._files:
            self._files[parent] = Entry(b"", "dir", mode=0o755, uid=0, gid=0)
            parent = posixpath.dirname(parent)
        old = self._files.get(path)
        usual = 0o755 if entry.kind == "dir" else 0o644
        mode = (old.mode if old else usual) if entry.mode == KEEP else entry.mode
        self._files[path] = replace(entry, path=b"", mode=mode, uid=0, gid=0, size_bytes=len(entry.data))

    def _read_tree(self, id: int, fields: Mapping[int, bytes]) -> None:
        path, flags = _normal(fields[Tag.PATH]), number(fields, Tag.FLAGS)
        whole, brief = bool(flags & Flag.TREE), bool(flags & Flag.NO_CONTENT)
        entry = Entry(b"", "dir", mode=0o755, uid=0, gid=0) if path == b"/" else self._files.get(path)
        if entry is None:
            self._fail(id, ENOENT, f"{path.decode(errors='replace')}: No such file or directory")
            return
        if not whole and not brief and entry.kind == "dir":
            self._fail(id, EISDIR, f"{path.decode(errors='replace')}: Is a directory")
            return
        entries = self._below(fields) if whole else [entry]
        most = number(fields, Tag.MAX_BYTES, 1 << 62)
        entries = [replace(e, data=b"" if brief else e.data[:most]) for e in entries]
        self._finish(id, {Tag.COUNT: len(entries)}, pack_entries(entries))

    def _below(self, fields: Mapping[int, bytes]) -> list[Entry]:
        """Everything below the request's path, in byte order, but for what it excludes."""
        base = _normal(fields[Tag.PATH]).rstrip(b"/") + b"/"
        out = [name for name in fields.get(Tag.EXCLUDE, b"").split(b"\0") if name]
        inside = {path[len(base) :]: entry for path, entry in self._files.items() if path.startswith(base)}
        return [replace(inside[name], path=name) for name in sorted(inside) if not _is_under(name, out)]


@dataclass(frozen=True, slots=True)
class _Done:
    """What a command will have done."""

    output: str
    exit_code: int
    run_s: float
    limit: int = 0
    writes: Mapping[str, str] | None = None


class _Pipe:
    """Delivers after a delay that may differ from message to message, and never out of order."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._queue: deque[tuple[float, Callable[[Any], None], Any]] = deque()
        self._last_due_s = 0.0

    def push(self, delay_s: float, deliver: Callable[[Any], None], message: Any) -> None:
        self._last_due_s = max(self._last_due_s, self._clock.time() + delay_s)
        self._queue.append((self._last_due_s, deliver, message))
        if len(self._queue) == 1:
            self._clock.call_later(delay_s, self._deliver)

    def _deliver(self) -> None:
        _, deliver, message = self._queue[0]
        try:
            deliver(message)
        finally:
            self._queue.popleft()
            if self._queue:
                self._clock.call_later(max(0.0, self._queue[0][0] - self._clock.time()), self._deliver)


class SimulatedChannel(Channel):
    """The host's end of a stream to a peer."""

    def __init__(self, peer: Peer, clock: Clock) -> None:
        self._peer = peer
        self._receiver: Receiver | None = None
        self._parser = Parser()
        self._key_left = KEY_BYTES
        self._to_peer, self._to_host = _Pipe(clock), _Pipe(clock)
        self._ended = False

    def start(self, receiver: Receiver) -> None:
        self._receiver = receiver
        if self._ended:
            receiver.connection_lost(None)

    def write(self, data: bytes) -> None:
        if self._ended:
            return
        key, data = data[: self._key_left], data[self._key_left :]
        self._key_left -= len(key)  # whoever opens a stream begins with the key
        for frame in self._parser.feed(data):
            self._to_peer.push(self._peer.transport_s(), self._take, frame)

    def close(self) -> None:
        self.end()

    def send(self, data: bytes) -> None:
        """Bytes of the peer leave for the host."""
        self._to_host.push(self._peer.transport_s(), self._deliver, data)

    def _take(self, frame: Frame) -> None:
        self._peer.take(self, frame)

    def _deliver(self, data: bytes) -> None:
        if not self._ended and self._receiver is not None:
            self._receiver.data_received(data)

    def end(self) -> None:
        """The stream is over. Idempotent."""
        if not self._ended:
            self._ended = True
            if self._receiver is not None:
                self._receiver.connection_lost(None)


def _normal(path: bytes) -> bytes:
    return b"/" + posixpath.normpath(b"/" + path).lstrip(b"/")


def _is_under(name: bytes, prefixes: Iterable[bytes]) -> bool:
    return any(name == prefix or name.startswith(prefix.rstrip(b"/") + b"/") for prefix in prefixes)
