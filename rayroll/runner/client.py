"""Speaks to one runner over any byte stream: commands, files, the lease; finds it again when the stream breaks."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from rayroll.errors import (
    CallerError,
    ClosedError,
    ProtocolError,
    RayrollError,
    SandboxFileError,
    SandboxLostError,
    StartTimeoutError,
)
from rayroll.runner.commands import encoded, error_of, exec_payload, exec_result, milliseconds, refusal_of
from rayroll.runner.protocol import (
    CHUNK_BYTES,
    KEY_BYTES,
    MAX_PAYLOAD_BYTES,
    VERSION,
    WINDOW_BYTES,
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
from rayroll.runner.tree import Entry, entries_from_tar, entries_to_tar, pack_entries, unpack_entries
from rayroll.types import ExecResult

__all__ = ["NUMBERED_FROM", "SYSTEM_FOLDERS", "Greeting", "Resume", "RunnerClient", "Tree"]

logger = logging.getLogger(__name__)

SYSTEM_FOLDERS = (b"proc", b"sys", b"dev", b"run", b".rayroll")
"""What a digest of a whole sandbox leaves out: the kernel's, and ours."""

NUMBERED_FROM = 1 << 31
"""Request ids from here on are chosen by whoever asks; those below are counted by the client."""

_CREDIT_EVERY_BYTES = WINDOW_BYTES // 4
_EPOCHS_A_GENERATION = 1 << 8
_IDS_A_GENERATION = 1 << 20


class Stream(Protocol):
    """What the client needs of a channel; ``rayroll.substrates.Channel`` is one."""

    def start(self, receiver: RunnerClient._Receiver) -> None:
        """Hand every byte to ``receiver.data_received``, then call ``receiver.connection_lost`` once."""

    def write(self, data: bytes) -> None:
        """Queue bytes; never block."""

    def close(self) -> None:
        """Let go. Idempotent."""


@dataclass(frozen=True, slots=True)
class Greeting:
    """What a runner says about itself and its sandbox."""

    build: str
    pid: int
    uid: int
    is_init: bool
    """It is PID 1 of its own pid namespace: nothing inside can kill it, and nothing outlives it."""
    shell: str
    machine: str
    kernel: str
    cwd: str
    env: Mapping[str, str]
    """The runner's own variables: what the image and the substrate set, whatever commands exported since."""


@dataclass(frozen=True, slots=True)
class Tree:
    """What a baseline or a reset found."""

    digest: str
    """SHA-256, in hex, over names, kinds, modes, owners and times, and of each file its contents or its identity."""
    entries: int
    repaired: int
    """Entries that a reset removed, made again or set back."""


@dataclass(frozen=True, slots=True)
class Resume:
    """What a client must know to go on where another, in a process that has died, was interrupted."""

    key: bytes = field(repr=False)
    """Whoever has it commands the runner."""
    instance: bytes
    """Of the runner: another one has never heard of what was asked."""
    generation: int = 0
    """How many clients there were before; the latest is the one that the runner heeds."""
    under_way: int | None = None
    """The command that was asked for by this number (``exec(number=...)``) and not answered yet, if there is one."""


class _StreamEnded(SandboxLostError):
    """One stream ended; the runner at its other end may live on."""


@dataclass(slots=True, eq=False)
class _Call:
    """A request whose reply is awaited, with what it takes to ask again."""

    id: int
    type: FrameType
    payload: bytes
    done: asyncio.Future[tuple[dict[int, bytes], bytes]]
    sent_ns: int = 0
    replied_ns: int = 0
    output: list[bytes] = field(default_factory=list)
    body: memoryview | None = None
    """Contents of an upload; sent as the runner's window allows."""
    body_sent: int = 0
    body_taken: int = 0
    body_ended: bool = False


class RunnerClient:
    """One host's end of one runner. Not thread-safe: it lives on the event loop that made it."""

    def __init__(
        self,
        lease_s: float,
        reopen: Callable[[], Awaitable[Stream]] | None,
        key: bytes | None = None,
        resume: Resume | None = None,
    ) -> None:
        self._lease_s = lease_s
        self._reopen = reopen
        self._generation = 0 if resume is None else resume.generation
        self._key = secrets.token_bytes(KEY_BYTES) if key is None else key
        self._epoch = self._generation * _EPOCHS_A_GENERATION
        self._instance: bytes | None = None if resume is None else resume.instance
        self._stream: Stream | None = None
        self._calls: dict[int, _Call] = {}
        self._inherited: dict[int, _Call] = {}
        """Asked by the client before this one, and not asked for here yet."""
        # What an earlier client asked and nobody awaits is still being ended: its ids are taken.
        self._next_id = 1 + self._generation * _IDS_A_GENERATION
        self._uncredited = 0
        self._acks = self._older_acks = b""
        """Acknowledgements not sent yet; the older ones have waited since the last renewal."""
        self._heard_at_s = time.monotonic()
        self._timer: asyncio.TimerHandle | None = None
        self._reattaching: asyncio.Task[None] | None = None
        self._lost: RayrollError | None = None
        self._receiver: RunnerClient._Receiver | None = None
        self._closed = False
        self.greeting: Greeting
        self.reattached = 0
        """How often a broken stream was opened again."""

    @classmethod
    async def connect(
        cls,
        stream: Stream,
        *,
        lease_s: float = 30.0,
        hello_timeout_s: float = 30.0,
        reopen: Callable[[], Awaitable[Stream]] | None = None,
        key: bytes | None = None,
        resume: Resume | None = None,
    ) -> RunnerClient:
        """Say hello and wait for the answer.

        Args:
            stream: An open channel nobody has read from.
            lease_s: Silence after which the runner kills everything and exits; renewed by this client until closed.
            hello_timeout_s: Longest wait for the answer.
            reopen: Opens another channel to the same runner; None: a broken stream is the end.
            key: 16 secret bytes that the runner was started with (``RAYROLL_KEY``, for ``serve --socket``); None: new
                ones, which a runner takes from the first to speak on its standard streams.
            resume: Go on for a client that is gone: what was under way there is not run again, and its result is what
                ``exec`` with the same number returns. Instead of ``key``.

        Raises:
            StartTimeoutError: No answer in time, or the stream ended before it.
            SandboxLostError: Another runner than the one to be resumed answers.
            ProtocolError: The runner refused, with its reason.
        """
        if resume is not None:
            key = resume.key
        if key is not None and len(key) != KEY_BYTES:
            raise CallerError("a key has 16 bytes", size_bytes=len(key))
        client = cls(lease_s, reopen, key, resume)
        if resume is not None and resume.under_way is not None:
            client._inherit(resume.under_way)
        try:
            await client._hello(stream, hello_timeout_s)
        except _StreamEnded as error:
            raise StartTimeoutError("the runner ended before it said hello", reason=str(error)) from error
        client._renew()
        return client

    # --- commands ---

    async def exec(
        self,
        script: str | bytes | None = None,
        *,
        argv: Iterable[str | bytes] | None = None,
        cwd: str | bytes | None = None,
        env: Mapping[str, str] | None = None,
        clean_env: bool = False,
        carry: bool = True,
        user: str | None = None,
        stdin: bytes = b"",
        timeout_s: float | None = None,
        idle_timeout_s: float | None = None,
        grace_s: float = 0.5,
        output_cap_bytes: int = 128 << 10,
        number: int | None = None,
    ) -> ExecResult:
        """Run one command; returns when its main process has ended, whatever it left running.

        Args:
            script: Text for the image's bash, else sh; up to 8 MiB.
            argv: A program and its arguments instead, without a shell.
            cwd: Directory for this command alone; None: the carried one.
            env: Variables for this command alone, on top of the carried ones.
            clean_env: Only ``env``; nothing is carried into the command or out of it.
            carry: Save directory and exported variables for the next command.
            user: ``name``, ``uid``, ``uid:gid``; None: the runner's own. What is carried belongs to this name.
            stdin: What it can read; then, or at once, the end of file.
            timeout_s: Limit for its run; then TERM, ``grace_s``, and KILL for everything it started.
            idle_timeout_s: Limit for silence.
            output_cap_bytes: Bytes of output kept, half from the beginning and half from the end.
            number: From ``NUMBERED_FROM`` to 2^32 - 1, and never used for this runner before: a client that resumes
                after this one can ask for the same command again, and it is not run twice. None: this client counts.

        Raises:
            CallerError: The request itself cannot work: unknown user, arguments too long.
            SandboxFileError: ``cwd`` is not a directory there, or not one that the user may enter.
            TaskError: The image has no shell.
            SandboxLostError: The sandbox or its runner is gone. The command may or may not have run.
        """
        payload = exec_payload(
            script,
            argv=argv,
            cwd=cwd,
            env=env,
            clean_env=clean_env,
            carry=carry,
            user=user,
            stdin=stdin,
            timeout_s=timeout_s,
            idle_timeout_s=idle_timeout_s,
            grace_s=grace_s,
            output_cap_bytes=output_cap_bytes,
        )
        call = self._start(FrameType.EXEC, payload, number=number)
        try:
            reply, raw = await call.done
        except asyncio.CancelledError:
            self._send(FrameType.CANCEL, call.id)
            raise
        return exec_result(reply, raw, call.replied_ns - call.sent_ns)

    async def kill_all(self) -> int:
        """End every process but the runner; returns how many requests were under way."""
        reply, _ = await self._start(FrameType.KILL_ALL, b"").done
        return number(reply, Tag.COUNT)

    async def ping(self) -> None:
        """Hear from the runner. Raises SandboxLostError."""
        await self._start(FrameType.LEASE, b"").done

    async def leave(self, lease_s: float) -> None:
        """Let go of the runner and leave it to itself: from now on it lives so many seconds, whoever started it ends.

        Raises:
            SandboxLostError: It is gone.
        """
        await self._start(FrameType.LEASE, encode_fields({Tag.LEASE_MS: milliseconds(lease_s)})).done
        await self.close()

    async def baseline(self, keep: Iterable[str] = (), *, most_bytes: int = 32 << 20) -> Tree:
        """Remember everything that can be written in the sandbox, so that ``reset`` can go back to it.

        Args:
            keep: Absolute paths below which the runner keeps copies of files; elsewhere a changed file is for ever.
            most_bytes: Of all copies; they count as the sandbox's memory.

        Raises:
            SandboxFileError: Something could not be read, or there is no room for the table.
        """
        fields: dict[int, int | bytes] = {
            Tag.KEEP: b"".join(encoded(path, "path") + b"\0" for path in keep),
            Tag.MAX_BYTES: most_bytes,
        }
        return _tree_of((await self._start(FrameType.BASELINE, encode_fields(fields)).done)[0])

    async def reset(self) -> Tree:
        """End every process, forget directory and variables, and go back to the baseline.

        The sandbox is clean only where the digest that comes back is the baseline's.

        Raises:
            SandboxFileError: Something cannot be undone; says what (errno EUCLEAN), or there is no baseline.
            InfraFailure: A process cannot be killed, or the runner is not PID 1 and so cannot know.
        """
        return _tree_of((await self._start(FrameType.RESET, b"").done)[0])

    # --- files; paths are bytes, and text is encoded as the file system does ---

    async def write_file(
        self,
        path: str | bytes,
        data: bytes,
        *,
        mode: int | None = None,
        uid: int | None = None,
        gid: int | None = None,
        user: str | None = None,
    ) -> None:
        """Write a file whole or not at all, making its folders; mode and owner of an existing file are kept.

        Raises:
            SandboxFileError: No space, no permission, a name too long; the file is as it was.
        """
        keep = Entry(b"")
        entry = Entry(
            b"",
            "file",
            data,
            keep.mode if mode is None else mode,
            keep.uid if uid is None else uid,
            keep.gid if gid is None else gid,
        )
        await self._put(path, [entry], user)

    async def read_file(self, path: str | bytes, *, max_bytes: int = 64 << 20, truncate: bool = False) -> bytes:
        """Contents of a file.

        Raises:
            SandboxFileError: It cannot be read, is no file, or is larger than ``max_bytes`` (errno EFBIG), unless
                ``truncate`` asks for its first ``max_bytes``.
        """
        fields: dict[int, int | bytes] = {
            Tag.PATH: encoded(path, "path"),
            Tag.MAX_BYTES: max_bytes,
            Tag.FLAGS: 0,
        }
        (entry,) = await self._get(fields)
        if entry.size_bytes > len(entry.data) and not truncate:
            raise SandboxFileError(
                "the file is larger than max_bytes", errno=errno.EFBIG, path=path, size_bytes=entry.size_bytes
            )
        return entry.data

    async def stat(self, path: str | bytes) -> Entry:
        """Facts of a path itself, a link not followed. Raises SandboxFileError where there is none."""
        (entry,) = await self._get({Tag.PATH: encoded(path, "path"), Tag.FLAGS: Flag.NO_CONTENT})
        return entry

    async def list_tree(self, path: str | bytes, *, exclude: Iterable[bytes] = ()) -> list[Entry]:
        """Everything below a path, in byte order, without contents."""
        return await self._get(_tree_fields(path, exclude, Flag.NO_CONTENT | Flag.TREE))

    async def upload_tree(self, path: str | bytes, tar: bytes, *, user: str | None = None) -> None:
        """Unpack an archive below a path, modes kept, owned by ``user`` or the runner."""
        # Megabytes take as many milliseconds, in which nobody else of this loop would be served.
        await self._put(path, await asyncio.to_thread(lambda: list(entries_from_tar(tar))), user)

    async def download_tree(self, path: str | bytes, *, exclude: Iterable[bytes] = ()) -> bytes:
        """An archive of everything below a path; ``exclude`` names relative prefixes."""
        entries = await self._get(_tree_fields(path, exclude, Flag.TREE))
        return await asyncio.to_thread(entries_to_tar, entries)

    async def make_dir(self, path: str | bytes, *, mode: int | None = None) -> None:
        """A folder and those above it; one that is there gets the mode."""
        await self._put(path, [Entry(b"", "dir", mode=Entry(b"").mode if mode is None else mode)], None)

    async def remove(self, path: str | bytes) -> None:
        """Remove whatever is there, folders with their contents; nothing there is no error."""
        await self._put(path, [Entry(b"", "remove")], None)

    async def digest(self, path: str | bytes = b"/", *, exclude: Iterable[bytes] = SYSTEM_FOLDERS) -> str:
        """SHA-256 over names, kinds, modes, owners and contents below a path, in hex; times do not count."""
        reply, _ = await self._start(FrameType.DIGEST, encode_fields(_tree_fields(path, exclude, 0))).done
        return reply[Tag.SHA256].hex()

    async def _put(self, path: str | bytes, entries: Iterable[Entry], user: str | None) -> None:
        fields: dict[int, int | bytes] = {Tag.PATH: encoded(path, "path")}
        if user is not None:
            fields[Tag.USER] = encoded(user, "user")
        call = self._start(FrameType.PUT, encode_fields(fields), body=memoryview(pack_entries(entries)))
        try:
            await call.done
        except asyncio.CancelledError:
            self._send(FrameType.CANCEL, call.id)
            raise

    async def _get(self, fields: Mapping[int, int | bytes]) -> list[Entry]:
        _, raw = await self._start(FrameType.GET, encode_fields(fields)).done
        return list(unpack_entries(raw))

    # --- the end ---

    def resume(self) -> Resume:
        """What the client after this one must know."""
        assert self._instance is not None, "known since hello"
        return Resume(self._key, self._instance, self._generation + 1)

    @property
    def is_lost(self) -> bool:
        """The runner cannot be reached any more; every call raises SandboxLostError."""
        return self._lost is not None

    async def close(self, *, shutdown: bool = False) -> None:
        """Stop renewing the lease and let go of the stream; with ``shutdown`` the runner ends first. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if shutdown and self._lost is None:
            self._send(FrameType.SHUTDOWN, 0)
        if self._reattaching:
            self._reattaching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reattaching
        self._fail(ClosedError("the client was closed"))

    # --- requests and replies ---

    def _start(
        self, type: FrameType, payload: bytes, body: memoryview | None = None, *, number: int | None = None
    ) -> _Call:
        if self._lost is not None:
            raise self._lost
        if len(payload) > MAX_PAYLOAD_BYTES:
            raise CallerError("the request is too large", size_bytes=len(payload), most_bytes=MAX_PAYLOAD_BYTES)
        inherited = None if number is None else self._inherited.pop(number, None)
        if inherited is not None:
            inherited.payload = payload  # for the next stream, whose runner may not know it
            inherited.sent_ns = time.monotonic_ns()  # nobody here waited before
            inherited.replied_ns = max(inherited.replied_ns, inherited.sent_ns)
            return inherited
        if number is None:
            number, self._next_id = self._next_id, self._next_id + 1
        call = _Call(number, type, payload, asyncio.get_running_loop().create_future(), body=body)
        self._calls[call.id] = call
        call.sent_ns = time.monotonic_ns()
        if self._stream is not None:
            self._ask(call)
        return call

    def _inherit(self, number: int) -> None:
        call = _Call(number, FrameType.EXEC, b"", asyncio.get_running_loop().create_future())
        self._calls[number] = self._inherited[number] = call

    def _ask(self, call: _Call) -> None:
        """Send a request from its beginning."""
        call.output.clear()
        call.body_sent = call.body_taken = 0
        call.body_ended = False
        self._send(call.type, call.id, call.payload)
        self._upload(call)

    def _upload(self, call: _Call) -> None:
        """Send what the window allows of an upload's contents, then its end."""
        if call.body is None or call.body_ended:
            return
        while call.body_sent < len(call.body) and call.body_sent - call.body_taken <= WINDOW_BYTES - CHUNK_BYTES:
            chunk = call.body[call.body_sent : call.body_sent + CHUNK_BYTES]
            self._send(FrameType.DATA, call.id, bytes(chunk))
            call.body_sent += len(chunk)
        if call.body_sent == len(call.body):
            call.body_ended = True
            self._send(FrameType.END, call.id)

    def _send(self, type: FrameType, request_id: int, payload: bytes = b"") -> None:
        if self._stream is not None:
            acks, self._older_acks, self._acks = self._older_acks + self._acks, b"", b""
            self._stream.write(acks + encode_frame(type, self._epoch, request_id, payload))

    def _on_frame(self, frame: Frame) -> None:
        call = self._calls.get(frame.request_id)
        if frame.type == FrameType.OUTPUT:
            if call is not None:
                call.output.append(frame.payload)
            self._uncredited += len(frame.payload)
            if self._uncredited >= _CREDIT_EVERY_BYTES:
                self._send(FrameType.CREDIT, 0, encode_fields({Tag.BYTES: self._uncredited}))
                self._uncredited = 0
        elif frame.type in (FrameType.RESULT, FrameType.ERROR):
            # It lets the runner forget the reply, which is not urgent: it leaves with the next request, or the next
            # renewal but one. On its own it would wake the engine, the shim and the runner once more, 200 us of CPU for
            # each step; and were this process to die before it has passed the reply on, nobody could ask for it again.
            self._acks += encode_frame(FrameType.ACK, self._epoch, frame.request_id)
            if call is not None:
                self._reply(call, frame)
        elif frame.type == FrameType.LEASE_OK and call is not None:
            self._reply(call, frame)
        elif frame.type == FrameType.WANT and call is not None:
            call.body_taken += number(decode_fields(frame.payload), Tag.BYTES)
            self._upload(call)
        elif frame.type == FrameType.REFUSED:
            if call is None:
                raise refusal_of(frame)
            del self._calls[call.id]
            if not call.done.done():
                call.done.set_exception(refusal_of(frame))

    def _reply(self, call: _Call, frame: Frame) -> None:
        del self._calls[call.id]
        call.replied_ns = time.monotonic_ns()
        if call.done.done():
            return
        fields = decode_fields(frame.payload)
        if frame.type == FrameType.ERROR:
            call.done.set_exception(error_of(fields))
        else:
            call.done.set_result((fields, b"".join(call.output)))

    # --- the stream: hello, lease, breaking and finding again ---

    class _Receiver:
        """The reading end of one stream: skips to the nonce, then cuts frames for the client."""

        def __init__(self, client: RunnerClient, stream: Stream, epoch: int) -> None:
            self.stream = stream
            self.nonce = secrets.token_bytes(KEY_BYTES)
            self.greeted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._client = client
            self._epoch = epoch
            self._parser = Parser()
            self._early: bytearray | None = bytearray()

        def data_received(self, data: bytes) -> None:
            if self._early is not None:
                self._early += data
                at = self._early.find(self.nonce)
                refusal = self._refusal() if at < 0 else None
                if refusal is not None and not self.greeted.done():
                    self.greeted.set_exception(refusal)
                if at < 0:
                    return
                data = bytes(self._early[at + KEY_BYTES :])
                self._early = None
            self._client._heard_at_s = time.monotonic()
            try:
                for frame in self._parser.feed(data):
                    if frame.epoch != self._epoch:
                        continue
                    if self.greeted.done():
                        self._client._on_frame(frame)
                    elif frame.type == FrameType.HELLO_OK:
                        self._greet(decode_fields(frame.payload))
                    elif frame.type == FrameType.REFUSED:
                        self.greeted.set_exception(refusal_of(frame))
            except ProtocolError as error:
                self._client._broken(self, error)

        def _greet(self, answer: Mapping[int, bytes]) -> None:
            problem = self._client._why_not(answer)
            if problem is not None:
                self.greeted.set_exception(problem)
                return
            # Here and not where it is awaited: output may follow in the same chunk.
            self._client._accepted(self, answer)
            self.greeted.set_result(None)

        def _refusal(self) -> ProtocolError | None:
            # Before the nonce there may be the tail of an older stream, so only a frame at the very start is looked at.
            assert self._early is not None
            with contextlib.suppress(ProtocolError):
                for frame in Parser().feed(bytes(self._early)):
                    if frame.type == FrameType.REFUSED and frame.epoch == self._epoch:
                        return refusal_of(frame)
            return None

        def connection_lost(self, error: Exception | None) -> None:
            lost = _StreamEnded("the stream to the runner ended", reason=repr(error) if error else "end of stream")
            if not self.greeted.done():
                self.greeted.set_exception(lost)
                self.greeted.exception()
            self._client._broken(self, lost)

    async def _hello(self, stream: Stream, timeout_s: float) -> None:
        self._epoch += 1
        receiver = self._Receiver(self, stream, self._epoch)
        pending = b"".join(id.to_bytes(4, "little") for id in self._calls)
        fields: dict[int, int | bytes] = {
            Tag.NONCE: receiver.nonce,
            Tag.VERSION_MIN: VERSION,
            Tag.VERSION_MAX: VERSION,
            Tag.LEASE_MS: milliseconds(self._lease_s),
            Tag.IDS: pending,
        }
        self._receiver = receiver
        stream.start(receiver)
        stream.write(self._key + encode_frame(FrameType.HELLO, self._epoch, 0, encode_fields(fields)))
        try:
            async with asyncio.timeout(timeout_s):
                await receiver.greeted
        except TimeoutError:
            stream.close()
            raise StartTimeoutError("the runner did not answer hello", timeout_s=timeout_s) from None
        except BaseException:
            stream.close()
            raise

    def _why_not(self, answer: Mapping[int, bytes]) -> RayrollError | None:
        """Why this answer to hello is not one that we can go on with; None: it is."""
        version = number(answer, Tag.VERSION_MAX)
        if version != VERSION:
            return ProtocolError("the runner answers in another version", runner=version, host=VERSION)
        if self._instance not in (None, answer.get(Tag.INSTANCE, b"")):
            return SandboxLostError("another runner answers: the one before has ended, and what it ran with it")
        return None

    def _accepted(self, receiver: _Receiver, answer: Mapping[int, bytes]) -> None:
        """The runner has answered hello: from here on its frames belong to the calls that wait."""
        if receiver is not self._receiver or self._closed:
            return
        self._stream = receiver.stream
        self._instance = answer.get(Tag.INSTANCE, b"")
        self._uncredited = 0
        self._acks = self._older_acks = b""  # of an earlier epoch; this hello said what is still awaited
        self.greeting = _greeting(answer)
        known = set(numbers(answer.get(Tag.IDS, b"")))
        for call in list(self._calls.values()):
            if call.id in known:
                call.output.clear()  # sent again from its beginning
            elif self._inherited.pop(call.id, None) is None:
                self._ask(call)
            else:  # it was never begun: whoever asks for it begins it
                del self._calls[call.id]

    def _renew(self) -> None:
        """Keep the lease, and notice a stream that is open but dead."""
        if self._closed or self._lost is not None:
            return
        if self._reattaching is None:
            # Each renewal is answered. Half a lease of silence leaves the other half to find the runner again.
            patience_s = self._lease_s if self._reopen is None else self._lease_s / 2
            if time.monotonic() - self._heard_at_s > patience_s:
                self._broken(self._receiver, SandboxLostError("the runner does not answer", silent_s=patience_s))
            self._send_renewal()
        self._timer = asyncio.get_running_loop().call_later(self._lease_s / 4, self._renew)

    def _send_renewal(self) -> None:
        fresh, self._acks = self._acks, b""
        self._send(FrameType.LEASE, 0)
        self._older_acks = fresh

    def _broken(self, receiver: _Receiver | None, error: RayrollError) -> None:
        if receiver is not self._receiver or self._closed or self._lost is not None:
            return
        if self._stream is None:
            return  # still in hello: its caller is told
        self._stream.close()
        self._stream = None
        if self._reattaching is not None:
            return  # broken as soon as it was accepted: the task that opened it sees that and goes on
        if self._reopen is None:
            self._fail(error)
        else:
            self._reattaching = asyncio.get_running_loop().create_task(self._reattach(self._reopen, error))

    async def _reattach(self, reopen: Callable[[], Awaitable[Stream]], cause: RayrollError) -> None:
        """Say hello again within what is left of the lease; nothing that ran is run twice."""
        pause_s = 0.05
        reason: Exception = cause
        while (left_s := self._heard_at_s + self._lease_s - time.monotonic()) > 0:
            try:
                # In several tries: an answer can be lost with the stream that carried it.
                async with asyncio.timeout(min(left_s, max(1.0, self._lease_s / 4))):
                    stream = await reopen()
                    await self._hello(stream, left_s)
            except (RayrollError, OSError, TimeoutError) as error:
                reason = error
                if isinstance(error, SandboxLostError) and not isinstance(error, _StreamEnded):
                    break  # whoever opens knows that it is gone
                await asyncio.sleep(min(pause_s, left_s))
                pause_s = min(2 * pause_s, 1.0)
            except Exception as error:  # a fault of whoever opens: those who wait must hear of it
                reason = error
                break
            else:
                if self._stream is None:
                    continue
                self.reattached += 1
                self._reattaching = None
                logger.info("runner found again: build=%s after %s", self.greeting.build, cause)
                return
        self._reattaching = None
        lost = SandboxLostError(cause.message, **{**cause.facts, "reattach": str(reason) or repr(reason)})
        lost.__cause__ = reason
        self._fail(lost)

    def _fail(self, error: RayrollError) -> None:
        """The end: every call that waits, and every later one, gets the error."""
        self._lost = error
        if self._timer is not None:
            self._timer.cancel()
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        self._receiver = None  # which knows this client: no cycle is left behind
        calls, self._calls = self._calls, {}
        for call in calls.values():
            if not call.done.done():
                call.done.set_exception(error)
                call.done.exception()  # whoever was waiting may be gone; that is no unhandled error


def _tree_fields(path: str | bytes, exclude: Iterable[bytes], flags: int) -> dict[int, int | bytes]:
    return {Tag.PATH: encoded(path, "path"), Tag.FLAGS: flags, Tag.EXCLUDE: b"".join(e + b"\0" for e in exclude)}


def _tree_of(reply: Mapping[int, bytes]) -> Tree:
    return Tree(reply[Tag.SHA256].hex(), number(reply, Tag.COUNT), number(reply, Tag.REPAIRED))


def _greeting(fields: Mapping[int, bytes]) -> Greeting:
    def text(tag: int) -> str:
        return fields.get(tag, b"").decode(errors="replace")

    return Greeting(
        build=text(Tag.BUILD),
        pid=number(fields, Tag.PID),
        uid=number(fields, Tag.UID),
        is_init=bool(number(fields, Tag.IS_INIT)),
        shell=text(Tag.SHELL),
        machine=text(Tag.MACHINE),
        kernel=text(Tag.KERNEL),
        cwd=text(Tag.CWD),
        env=_environment(fields.get(Tag.ENV, b"")),
    )


def _environment(block: bytes) -> dict[str, str]:
    entries = (os.fsdecode(entry).partition("=") for entry in block.split(b"\0") if entry)
    return {name: value for name, _, value in entries}
