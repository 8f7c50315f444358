"""The suite catches substrates that break their contract: each of these is one that does, in one way."""

from __future__ import annotations

import asyncio
import dataclasses
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from requirements import needs

from rayroll.runner.protocol import (
    HEADER,
    HEADER_BYTES,
    KEY_BYTES,
    FrameType,
    Tag,
    decode_fields,
    encode_fields,
    encode_frame,
)
from rayroll.substrates import Channel, Lease, Sandbox, SandboxRef, SandboxSpec, _boxes
from rayroll.substrates.local import LocalConfig, LocalSubstrate
from rayroll.testing import conformance
from rayroll.testing.conformance import Capability
from rayroll.testing.conformance._streams import Rewriting

needs_local = needs("local")
pytestmark = pytest.mark.local


class OverChannel(LocalSubstrate):
    """Its sandboxes are in order; what the subclass puts around their channels is not."""

    def around(self, channel: Channel) -> Channel:
        raise NotImplementedError

    async def create(self, spec: SandboxSpec, lease: Lease) -> Sandbox:
        sandbox = await super().create(spec, lease)
        sandbox.channel = self.around(sandbox.channel)
        return sandbox

    async def reopen(self, ref: SandboxRef) -> Channel:
        return self.around(await super().reopen(ref))


def with_fields(type: FrameType, change: Callable[[dict[int, Any]], None]) -> Callable[[int, bytes], bytes]:
    """Changes the fields of one type of frame."""

    def rewrite(seen: int, payload: bytes) -> bytes:
        if seen != type:
            return payload
        fields: dict[int, Any] = dict(decode_fields(payload))
        change(fields)
        return encode_fields(fields)

    return rewrite


class LosesExitCodes(OverChannel):
    """Every command succeeds, as where a status that is not there is read as 0."""

    def around(self, channel: Channel) -> Channel:
        return Rewriting(channel, with_fields(FrameType.RESULT, lambda f: f.update({Tag.EXIT_CODE: 0})))


class DecodesText(OverChannel):
    """Output and files pass through a text decoder."""

    def around(self, channel: Channel) -> Channel:
        return Rewriting(
            channel, lambda t, p: p.decode(errors="replace").encode() if t == FrameType.OUTPUT and b"\xff" in p else p
        )


class DropsTheEnd(OverChannel):
    """The last bytes of a long output do not arrive."""

    def around(self, channel: Channel) -> Channel:
        return Rewriting(channel, lambda t, p: p[:-1] if t == FrameType.OUTPUT and len(p) > 10_000 else p)


class ChargesTheCommand(OverChannel):
    """What was waiting and draining is booked as the command's run."""

    def around(self, channel: Channel) -> Channel:
        def move(fields: dict[int, Any]) -> None:
            parts = (Tag.QUEUED_NS, Tag.SPAWN_NS, Tag.RUN_NS, Tag.DRAIN_NS)
            total = sum(int.from_bytes(fields.get(tag, b""), "little") for tag in parts)
            fields.update({Tag.QUEUED_NS: 0, Tag.SPAWN_NS: 0, Tag.RUN_NS: total, Tag.DRAIN_NS: 0})

        return Rewriting(channel, with_fields(FrameType.RESULT, move))


class Outgoing(Channel):
    """Changes frames on their way to the runner; a write has whole ones."""

    def __init__(self, inner: Channel, change: Callable[[dict[int, Any]], None], type: FrameType) -> None:
        self._inner, self._rewrite, self._key_bytes = inner, with_fields(type, change), KEY_BYTES

    def start(self, receiver: Any) -> None:
        self._inner.start(receiver)

    def close(self) -> None:
        self._inner.close()

    def write(self, data: bytes) -> None:
        changed, data = data[: self._key_bytes], data[self._key_bytes :]
        self._key_bytes = 0  # only the first write, a hello, has one
        while data:
            size, type, _, epoch, request_id = HEADER.unpack_from(data)
            payload, data = data[HEADER_BYTES : HEADER_BYTES + size], data[HEADER_BYTES + size :]
            assert len(payload) == size
            changed += encode_frame(type, epoch, request_id, self._rewrite(type, payload))
        self._inner.write(changed)


class NeverTimesOut(OverChannel):
    """The limit of a command does not reach the runner."""

    def around(self, channel: Channel) -> Channel:
        return Outgoing(channel, lambda fields: fields.update({Tag.TIMEOUT_MS: 0}), FrameType.EXEC)


class ForgetsTheLease(OverChannel):
    """The sandbox lives an hour longer than its host, whatever the lease says."""

    def around(self, channel: Channel) -> Channel:
        return Outgoing(channel, lambda fields: fields.update({Tag.LEASE_MS: 3_600_000}), FrameType.HELLO)


class LeavesSandboxes(LocalSubstrate):
    """``destroy`` only says that it did."""

    async def destroy(self, ref: SandboxRef) -> None:
        self.__dict__.setdefault("left", []).append(ref)

    async def close(self) -> None:
        for ref in self.__dict__.pop("left", []):
            await super().destroy(ref)
        await super().close()


class ForgetsLabels(LocalSubstrate):
    """``list`` shows everything to everybody."""

    async def list(self, labels: Mapping[str, str]) -> list[SandboxRef]:
        return await super().list({})


class LeaksWhenCancelled(LocalSubstrate):
    """A cancelled ``create`` goes on behind its caller's back."""

    async def create(self, spec: SandboxSpec, lease: Lease) -> Sandbox:
        return await asyncio.shield(super().create(spec, lease))


class ReattachesElsewhere(LocalSubstrate):
    """``reopen`` opens a stream to a new sandbox, and calls it the same."""

    async def reopen(self, ref: SandboxRef) -> Channel:
        sandbox = await super().create(SandboxSpec(), Lease(ref.run_id, ref.owner, 30))
        return sandbox.channel


class LiftsLimits(LocalSubstrate):
    """What the spec limits is not limited."""

    async def create(self, spec: SandboxSpec, lease: Lease) -> Sandbox:
        return await super().create(dataclasses.replace(spec, pids=100_000, memory_mib=8192), lease)


class GivesUntypedErrors(LocalSubstrate):
    """A library's own error comes through."""

    async def create(self, spec: SandboxSpec, lease: Lease) -> Sandbox:
        if spec.image is not None:
            raise RuntimeError(f"404 Client Error: no such image {spec.image}")
        return await super().create(spec, lease)


MUTANTS: dict[type[LocalSubstrate], tuple[str, ...]] = {
    LosesExitCodes: (
        "output_and_exit_code_are_the_commands_own",
        "exit_codes_are_those_that_shells_say",
        "bad_syntax_fails_at_once",
    ),
    DecodesText: (
        "bytes_that_are_no_text_are_replaced_and_kept",
        "every_byte_value_can_be_printed",
        "contents_arrive_unchanged",
    ),
    DropsTheEnd: ("eight_mebibytes_of_output_arrive_unchanged", "contents_arrive_unchanged"),
    ChargesTheCommand: ("the_timeout_starts_with_the_command", "grace_and_killing_are_not_run"),
    NeverTimesOut: ("a_timeout_ends_the_command_with_its_children_and_keeps_its_output",),
    ForgetsTheLease: ("a_sandbox_whose_lease_is_not_renewed_is_gone_one_lease_later",),
    LeavesSandboxes: ("destroying_twice_is_no_error", "another_instance_can_list_and_destroy"),
    ForgetsLabels: ("list_shows_exactly_the_sandboxes_of_its_labels", "sweeping_one_run_leaves_the_other"),
    LeaksWhenCancelled: ("a_cancelled_create_leaves_nothing",),
    ReattachesElsewhere: (
        "a_command_survives_a_broken_stream_and_runs_once",
        "state_and_background_jobs_survive_a_break",
    ),
    LiftsLimits: (
        "a_full_process_table_is_the_commands_failure",
        "running_out_of_memory_costs_the_command_not_the_runner",
    ),
    GivesUntypedErrors: ("an_unknown_image_is_refused_with_its_name",),
}
LIMITS = (Capability.PID_LIMIT, Capability.MEMORY_LIMIT)


@pytest.fixture
def folder() -> Iterator[Path]:
    """For sandboxes. Not below pytest's own, which is closed to the user that sandboxes run as."""
    with tempfile.TemporaryDirectory(prefix="rr-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
async def config(folder: Path) -> AsyncIterator[LocalConfig]:
    """A folder of their own, for some of them would sweep what belongs to others; emptied by one that is in order."""
    yield LocalConfig(folder=folder)
    async with LocalSubstrate(LocalConfig(folder=folder)) as sound:
        for ref in await sound.list({}):
            await sound.destroy(ref)
    _collect_the_dead()


def _collect_the_dead() -> None:
    """Substrates that were closed with sandboxes alive have left their children to nobody."""
    for process in _boxes._abandoned:
        process.poll()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.__name__)
async def test_a_broken_substrate_is_caught(mutant: type[LocalSubstrate], config: LocalConfig) -> None:
    promises = LIMITS if mutant is LiftsLimits else ()
    async with mutant(config) as substrate:
        report = await conformance.check(substrate, only=MUTANTS[mutant], promises=promises)
    assert {r.name: r.outcome for r in report.results} == dict.fromkeys(MUTANTS[mutant], "broken"), str(report)
    assert not report.ok


async def test_the_same_checks_hold_for_one_in_order(config: LocalConfig) -> None:
    names = {name for checks in MUTANTS.values() for name in checks}
    async with LocalSubstrate(config) as substrate:
        report = await conformance.check(substrate, only=sorted(names))
    assert report.broken == [], str(report)


async def test_a_secret_that_the_configuration_lets_in_is_found(config: LocalConfig) -> None:
    leaky = config.model_copy(update={"pass_env": ("RAYROLL_CONFORMANCE_SECRET",)})
    report = await conformance.check(leaky, only=["the_hosts_variables_stay_outside"])
    assert [r.outcome for r in report.results] == ["broken"]


async def test_a_plain_process_does_not_keep_the_promise_of_isolation(config: LocalConfig) -> None:
    plain = config.model_copy(update={"isolation": "none"})
    only = ["the_hosts_files_stay_outside"]
    kept = await conformance.check(plain, only=only)
    assert [r.outcome for r in kept.results] == ["not applicable"]
    assert not kept.ok, "a report in which nothing held is not a good one"
    promised = await conformance.check(plain, only=only, promises=[Capability.OWN_PIDS])
    assert [r.outcome for r in promised.results] == ["broken"]
    assert "promised" in promised.results[0].reason
