"""Lend this cluster's sandboxes to trainers outside of it."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from pathlib import Path
from typing import Annotated

import typer

from rayroll.errors import ConfigError
from rayroll.executor.away import PORT
from rayroll.executor.board import join
from rayroll.executor.executor import connect_to_ray
from rayroll.executor.gateway import Gateway
from rayroll.executor.remote import secret_file

__all__ = ["serve"]


def serve(
    listen: Annotated[
        str, typer.Option(help="IP:PORT to listen at. 0.0.0.0: for every network of this machine.")
    ] = f"127.0.0.1:{PORT}",
    address: Annotated[
        str | None, typer.Option(help="Ray cluster, IP:PORT or auto. Default: RAY_ADDRESS, else one of its own.")
    ] = None,
    secret_path: Annotated[
        Path | None, typer.Option("--secret-file", help="Holds the secret; made where there is none.")
    ] = None,
) -> None:
    """Run in the sandboxes' cluster; trainers elsewhere use it with rayroll.connect(). Ends with Ctrl-C."""
    ip, _, port = listen.rpartition(":")
    if not ip or not port.isdigit():
        raise ConfigError("listen is IP:PORT", listen=listen)
    file = secret_path or secret_file()
    secret = _secret(file)
    if address is not None:
        join(address)
    else:
        connect_to_ray()
    try:
        asyncio.run(_serve(ip.strip("[]"), int(port), secret, file))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _secret(file: Path) -> bytes:
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        # Never readable by others, not even for a moment.
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
            out.write(secrets.token_hex(32) + "\n")
    if file.stat().st_mode & 0o077:
        raise ConfigError(f"others can read the secret; run: chmod 600 {file}", file=str(file))
    secret = file.read_text().strip()
    if len(secret) < 16:
        raise ConfigError("the secret is too short; remove the file, and a new one is made", file=str(file))
    return secret.encode()


async def _serve(ip: str, port: int, secret: bytes, file: Path) -> None:
    gateway = Gateway(secret)
    try:
        at = await gateway.open(ip, port)
    except OSError as error:
        raise ConfigError("cannot listen there", listen=f"{ip}:{port}", reason=str(error)) from error
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)  # as `ray job stop` does; after Ray
    typer.echo(f"listening at {at.ip}:{at.port}; trainers need the secret in {file}")
    try:
        await ended.wait()
    finally:
        await gateway.close()
