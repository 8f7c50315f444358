"""A stream to a program at the other end of an SSH connection, in a machine whose host key is known beforehand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import asyncssh

from rayroll.errors import SandboxLostError, SubstrateError
from rayroll.substrates._stream import StreamChannel

if TYPE_CHECKING:
    from asyncssh import SSHClientConnection, SSHKey

__all__ = ["GO", "GONE", "Keys", "SshChannel", "SshHost", "UnreachableError", "WrongHostError", "dial", "start"]

GO = b"rayroll: go\n"
"""What a program prints before anything else that is meant for us: an image's login scripts may greet as well."""
GONE = 75
"""The exit code of a program that has looked for the runner and found that it has ended."""
STDERR_KEPT_BYTES = 4 << 10
# AES in hardware and nothing to compress: a frame is small, and each is encrypted in Python's process.
CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "chacha20-poly1305@openssh.com", "aes128-ctr")


class UnreachableError(SubstrateError):
    """Nobody answers there, or not yet."""


class WrongHostError(SubstrateError):
    """Somebody answers who does not have the key that the machine was given. Nothing was sent to him."""


@dataclass(frozen=True, slots=True)
class Keys:
    """Made for one machine, and used for no other."""

    host: SSHKey = field(repr=False)
    """By which we know the machine."""
    client: SSHKey = field(repr=False)
    """By which it knows us."""

    @classmethod
    def make(cls) -> Keys:
        """Two new ones."""
        return cls(asyncssh.generate_private_key("ssh-ed25519"), asyncssh.generate_private_key("ssh-ed25519"))

    @property
    def host_private(self) -> str:
        """For the machine's own sshd."""
        return self.host.export_private_key().decode()

    @property
    def client_public(self) -> str:
        """A line for ``authorized_keys``."""
        return self.client.export_public_key().decode().strip()


@dataclass(frozen=True, slots=True)
class SshHost:
    """Where a machine is, and the keys to it."""

    address: str
    keys: Keys
    port: int = 22


class SshChannel(StreamChannel):
    """The standard streams of one program, on a connection of its own: nothing else holds up what is in a hurry."""

    def __init__(self, connection: SSHClientConnection) -> None:
        super().__init__()
        self._connection = connection
        self._before: bytearray | None = bytearray()
        self.ready = self._ended.get_loop().create_future()
        self.exit_code: int | None = None
        """Of the program; None: it has not ended, or its end was not seen."""
        self.stderr = b""
        """The last of what was printed there; commands' output comes in frames."""

    def abort(self) -> None:
        self._connection.abort()  # a channel's own abort waits for an answer

    # what asyncssh calls

    def session_started(self) -> None:
        """The program runs."""

    def xon_xoff_requested(self, client_can_do: bool) -> None:
        """About terminals."""

    def exit_status_received(self, status: int) -> None:
        self.exit_code = status

    def exit_signal_received(self, signal: str, core_dumped: bool, msg: str, lang: str) -> None:
        self.exit_code = 128

    def data_received(self, data: bytes, datatype: int | None = None) -> None:
        if datatype is not None:
            self.stderr = (self.stderr + data)[-STDERR_KEPT_BYTES:]
        elif self._before is None:
            super().data_received(data)
        else:
            self._before += data
            _, found, rest = self._before.partition(GO)
            if found:
                self._before = None
                self.ready.set_result(None)
                if rest:
                    super().data_received(bytes(rest))

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ready.done():
            self.ready.set_exception(self._never_ready(exc))
            self.ready.exception()  # whoever waits is told; nobody else need be
        super().connection_lost(exc)
        self._connection.close()

    def _never_ready(self, exc: Exception | None) -> Exception:
        said = self.stderr.decode(errors="replace").strip()
        if self.exit_code == GONE:
            return SandboxLostError("the runner has ended")
        if self.exit_code is not None:
            return SubstrateError("the runner cannot be started", exit_code=self.exit_code, said=said)
        return UnreachableError("the connection ended while the runner was started", reason=str(exc or "closed"))


async def dial(host: SshHost, *, timeout_s: float) -> SSHClientConnection:
    """A connection as root. Nothing of this machine's own SSH settings, keys and agents is looked at.

    Raises:
        UnreachableError: Nobody listens, or he hangs up, or does not know our key.
        WrongHostError: Another machine's key.
    """
    try:
        return await asyncssh.connect(
            host.address,
            host.port,
            username="root",
            client_keys=[host.keys.client],
            known_hosts=([host.keys.host.convert_to_public()], [], []),
            server_host_key_algs=["ssh-ed25519"],
            encryption_algs=CIPHERS,
            compression_algs=["none"],
            preferred_auth=["publickey"],
            agent_path=None,
            config=None,
            connect_timeout=timeout_s,
            login_timeout=timeout_s,
        )
    except (asyncssh.HostKeyNotVerifiable, asyncssh.KeyExchangeFailed) as error:
        raise WrongHostError("another host key than the machine was given", address=host.address) from error
    except (OSError, asyncssh.Error) as error:
        raise UnreachableError(
            "the machine is not reached by SSH", address=host.address, reason=str(error) or type(error).__name__
        ) from error


async def start(host: SshHost, command: str, stdin: bytes, *, timeout_s: float) -> SshChannel:
    """A program in a machine, once it has said ``GO``. What it reads first is ``stdin``.

    Raises:
        UnreachableError, WrongHostError: See ``dial``.
        SandboxLostError: It ended with ``GONE``.
        SubstrateError: It ended in any other way, with what it printed.
    """
    connection = await dial(host, timeout_s=timeout_s)
    try:
        channel = await _session(connection, command)
        if stdin:
            channel.write(stdin)
        await channel.ready
    except asyncssh.Error as error:
        connection.abort()
        raise UnreachableError("the machine starts no program", address=host.address, reason=str(error)) from error
    except BaseException:
        connection.abort()
        raise
    return channel


async def _session(connection: SSHClientConnection, command: str) -> SshChannel:
    _, session = await connection.create_session(cast("Any", lambda: SshChannel(connection)), command, encoding=None)
    return cast("SshChannel", session)
