"""Makes what virtual machines start from, ahead of the first one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rayroll.substrates import SandboxSpec
    from rayroll.substrates.qemu import QemuConfig

__all__ = ["vm"]

vm = typer.Typer(help="Virtual machines of the substrate qemu.", no_args_is_help=True)


@vm.callback()
def _group() -> None:
    """Keeps `build` a word of its own while it is the only one."""


@vm.command()
def build(
    image: Annotated[str | None, typer.Option(help="A Docker image; default: the substrate's plain one.")] = None,
    context: Annotated[
        Path | None, typer.Option(help="Instead of an image: a folder with a Dockerfile.", exists=True, file_okay=False)
    ] = None,
    memory_mib: Annotated[int, typer.Option("--memory", help="MiB, as the task asks for it.")] = 2048,
    cpus: Annotated[float, typer.Option(help="As the task asks for it.")] = 1.0,
    disk_mib: Annotated[int, typer.Option("--disk", help="MiB, as the task asks for it.")] = 10240,
    accelerator: Annotated[str, typer.Option(help="auto, kvm or tcg.")] = "auto",
    snapshot: Annotated[bool, typer.Option(help="Also boot once and save that state.")] = True,
    kernel_only: Annotated[bool, typer.Option("--kernel-only", help="Fetch the guests' kernel and no more.")] = False,
) -> None:
    """Make kernel, first file system, disk and saved state of one image and size, where they are not there yet.

    `create` makes the same when it needs them, but for the kernel, which only this fetches (by apt, Debian's
    linux-image-cloud-amd64, unpacked below the user's cache and not installed).
    """
    from rayroll.errors import ConfigError
    from rayroll.substrates import SandboxSpec, _qemu_disk
    from rayroll.substrates.qemu import QemuConfig
    from rayroll.types import FileTree

    if image is not None and context is not None:
        raise ConfigError("either an image or a context, not both", image=image, context=str(context))
    kernel = _qemu_disk.find_kernel(None) or _qemu_disk.fetch_kernel()
    typer.echo(f"kernel: {kernel.version}")
    if kernel_only:
        return
    tree = FileTree.from_dir(context) if context is not None else None
    spec = SandboxSpec(image=image, environment=tree, memory_mib=memory_mib, cpus=cpus, disk_mib=disk_mib)
    config = QemuConfig.parse({"accelerator": accelerator, "snapshot": snapshot})
    for name, value in asyncio.run(_build(config, spec)).items():
        typer.echo(f"{name}: {value}")


async def _build(config: QemuConfig, spec: SandboxSpec) -> Mapping[str, str]:
    from rayroll.substrates import Lease
    from rayroll.substrates.qemu import QemuSubstrate

    qemu = QemuSubstrate(config)
    async with qemu:
        return await qemu.build(spec, Lease("vm-build", "vm-build"))
