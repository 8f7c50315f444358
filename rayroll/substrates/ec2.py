"""A cloud machine: launched by EC2's API, reached by SSH, and off as soon as its lease is over."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from rayroll.errors import ClosedError, ConfigError, SandboxLostError, StartTimeoutError, SubstrateError
from rayroll.substrates import (
    Channel,
    Lease,
    Probe,
    Sandbox,
    SandboxRef,
    SandboxSpec,
    Substrate,
    SubstrateConfig,
)
from rayroll.substrates._ec2_calls import Calls, Sightings, connect, instance_of, launch, tagged, terminate
from rayroll.substrates._ec2_offers import POOL, RUN, label, offers, reason_of, ref_of, tagging, tags_for
from rayroll.substrates._reaping import Watches
from rayroll.substrates._shield import Chores, finish

if TYPE_CHECKING:
    from rayroll.substrates._ec2_start import Start
    from rayroll.substrates._ssh import SshChannel, SshHost

__all__ = ["Ec2Config", "Ec2Substrate"]

UNDO_PATIENCE_S = 5.0


class Ec2Config(SubstrateConfig):
    """Which machines, and how they are asked for. Credentials come from where boto3 finds them, never from here."""

    region: str | None = None
    """None: AWS_REGION, AWS_DEFAULT_REGION, or the profile's."""
    profile: str | None = None
    """A profile of ``~/.aws``; None: AWS_PROFILE, or the default chain (variables, a role of this machine)."""
    endpoint_url: str | None = None
    """None: AWS's own, or AWS_ENDPOINT_URL_EC2."""
    ami: str | None = "resolve:ssm:/aws/service/debian/release/12/latest/amd64"
    """The system of a spec without an image: an AMI, or a public parameter that names one. Any Linux with cloud-init,
    sshd and util-linux. None: the launch template's."""
    images: Mapping[str, str] = Field(default_factory=dict)
    """The AMI for an image that a task names, or that its Dockerfile would build. Names that are not here must be AMIs
    themselves (``ami-...``)."""
    instance_types: tuple[str, ...] = ("t3.medium", "t3a.medium")
    """Tried in this order; those too small for a task are passed over. Empty: the launch template's."""
    subnets: tuple[str, ...] = ()
    """For each type tried in this order. Empty: the launch template's, or one that EC2 chooses in the default VPC."""
    security_groups: tuple[str, ...] = ()
    """Ids of groups that let this host in by SSH. Empty: the launch template's, or the VPC's default, which lets in
    nobody but its own members."""
    launch_template: str | None = None
    """``lt-...`` or a name, with ``:VERSION`` behind it where it shall not be the default one. What is set here goes
    before what is set there."""
    market: Literal["on-demand", "spot"] = "on-demand"
    """``spot``: cheaper, and EC2 may take a machine away; its sandbox is then lost, with that as the cause."""
    spot_max_price: str | None = None
    """US dollars an hour; None: at most the price on demand."""
    instance_profile: str | None = None
    """Name of an IAM instance profile. None: the machine, and so an agent, can do nothing in this account."""
    key_name: str | None = None
    """A key pair that people may log in with beside us. None: nobody else can."""
    address: Literal["private", "public"] = "private"
    """Which of its addresses leads to a machine from here."""
    stopped_pool: str | None = None
    """Start a stopped machine whose tag ``rayroll.pool`` has this value, where there is one, instead of launching. It
    is used once. ``Ec2Substrate.stock`` fills a pool."""
    request_timeout_s: float = 20.0
    """Longest wait for one answer of EC2."""
    max_calls: int = 8
    """Calls to EC2 at the same time, each in a thread."""
    poll_s: float = 1.0
    """Pause between two looks at what has been launched: one look for all that wait."""
    visible_timeout_s: float = 30.0
    """How long a launched machine may stay unknown to EC2 itself before it is given up."""
    create_timeout_s: float = 300.0
    """Longest wait from ``create`` to a started runner, for room at EC2 as well."""

    @model_validator(mode="after")
    def _has_a_machine(self) -> Self:
        if self.launch_template is None and not (self.ami and self.instance_types):
            raise ValueError("without a launch_template, ami and instance_types must be set")
        return self


class Ec2Substrate(Substrate):
    """Machines of one account in one region."""

    kind: ClassVar[str] = "ec2"
    config_type: ClassVar[type[SubstrateConfig]] = Ec2Config

    def __init__(self, config: Ec2Config) -> None:
        super().__init__(config)
        self.config: Ec2Config = config
        self._starting = asyncio.Semaphore(config.max_starting)
        self._parts: tuple[Calls, Sightings, Any] | None = None
        self._types: dict[str, Mapping[str, Any]] = {}
        self._hosts: dict[str, SshHost] = {}
        self._channels: dict[str, SshChannel] = {}
        self._undoing = Chores("a half-made machine was not terminated, its own timer will do it")
        self._watches = Watches()
        self._facts: dict[str, str] = {}

    # life of the substrate

    async def open(self) -> None:
        client, session, version = await asyncio.to_thread(connect, self.config)
        calls = Calls(client, self.config.max_calls)
        self._parts = calls, Sightings(calls, self.config.poll_s), session
        self._facts = {"boto3": version, "region": client.meta.region_name, "endpoint": client.meta.endpoint_url}
        try:
            if self.config.instance_types:
                answer = await calls.once("describe_instance_types", InstanceTypes=[*self.config.instance_types])
                self._types = {found["InstanceType"]: found for found in answer["InstanceTypes"]}
            else:
                await calls.once("describe_instances", MaxResults=5)
        except BaseException:
            await self.close()
            raise

    def _opened(self) -> tuple[Calls, Sightings, Any]:
        if self._parts is None:
            raise ClosedError("the ec2 substrate is not open")
        return self._parts

    @property
    def _not_aws(self) -> dict[str, str]:
        """A label for what is no machine of AWS's: its times are not theirs."""
        endpoint = self._facts["endpoint"]
        return {} if ".amazonaws." in endpoint else {"endpoint": endpoint}

    @property
    def _patience_s(self) -> float:
        """The monotonic time at which a call of this moment is given up."""
        return time.monotonic() + 2 * self.config.request_timeout_s

    async def close(self) -> None:
        if self._parts is None:
            return
        await self._undoing.wait(UNDO_PATIENCE_S)
        if not self._undoing and not self._hosts:
            await self._watches.lift()
        for channel in self._channels.values():
            channel.abort()
        self._channels.clear()
        (calls, sightings, _), self._parts = self._parts, None
        await sightings.close()
        await asyncio.to_thread(calls.close)

    async def probe(self) -> Probe:
        try:
            async with asyncio.timeout(9.0), Ec2Substrate(self.config) as other:
                assert isinstance(other, Ec2Substrate)
                await other._ask_permission()
                return Probe(True, facts=other._facts)
        except TimeoutError:
            return Probe(False, "EC2 does not answer", "look at the network, and at the region")
        except (SubstrateError, ConfigError) as error:
            facts = {name: str(value) for name, value in error.facts.items()}
            said = facts.get("said") or facts.get("reason")
            return Probe(False, f"{error.message}: {said}" if said else error.message, facts.get("fix", ""), facts)

    async def _ask_permission(self) -> None:
        """Ask EC2 whether it would launch, without its doing so. Raises SubstrateError: it would not."""
        calls, _, _ = self._opened()
        offer = offers(self.config, self._types, SandboxSpec(cpus=0, memory_mib=0))[0]
        try:
            await calls.once("run_instances", DryRun=True, **offer)
        except SubstrateError as error:
            if error.facts.get("code") != "DryRunOperation":
                raise

    # life of a sandbox

    async def create(self, spec: SandboxSpec, lease: Lease) -> Sandbox:
        from rayroll.substrates._ec2_start import Start

        calls, sightings, _ = self._opened()
        chosen = offers(self.config, self._types, spec)
        tags = tags_for(spec, lease, secrets.token_hex(8))
        await self._watch(lease)
        async with self._starting:
            start = Start(self.config, calls, sightings, chosen, tags)
            try:
                async with asyncio.timeout(self.config.create_timeout_s):
                    channel = await start.run(spec, lease)
            except TimeoutError:
                await self._undo(start)
                raise StartTimeoutError(
                    "the machine was not started in time",
                    waiting_for=start.waiting_for,
                    create_timeout_s=self.config.create_timeout_s,
                    **start.facts,
                ) from None
            except BaseException:
                await self._undo(start)
                raise
        self._hosts[start.id], self._channels[start.id] = start.host, channel
        return Sandbox(
            SandboxRef(self.kind, start.id, lease.run_id, lease.owner, lease_s=lease.duration_s),
            channel,
            "warm" if start.is_from_pool else "cached",
            start.phases_s,
            facts={**self._facts, **start.facts, "network": "open" if spec.network else "namespace"},
            labels={"instance_type": start.facts["type"], **self._not_aws},
        )

    async def _watch(self, lease: Lease) -> None:
        """Have the reaper look after this lease's machines, with the credentials that are good now."""
        _, _, session = self._opened()
        found = await asyncio.to_thread(lambda: session.get_credentials().get_frozen_credentials())
        credentials = {"key": found.access_key, "secret": found.secret_key, "token": found.token}
        await self._watches.cover_ec2(self._facts["endpoint"], self._facts["region"], credentials, lease)

    async def _undo(self, start: Start) -> None:
        """Terminate what a failed or cancelled create may have made; what takes longer, behind the caller's back."""
        await self._undoing.run(start.undo(), UNDO_PATIENCE_S)

    async def reopen(self, ref: SandboxRef) -> Channel:
        from rayroll.substrates._ec2_boot import connect_command
        from rayroll.substrates._ec2_start import DIAL_TIMEOUT_S
        from rayroll.substrates._ssh import UnreachableError, start

        host, old = self._hosts.get(ref.id), self._channels.get(ref.id)
        if host is None:
            raise SandboxLostError("nobody here has the keys to this machine", id=ref.id)
        if old is not None:
            old.abort()
        try:
            channel = await start(host, connect_command(), b"", timeout_s=DIAL_TIMEOUT_S)
        except UnreachableError as error:
            if cause := await self.cause_of_death(ref):
                raise SandboxLostError("the machine is gone", id=ref.id, cause=cause) from error
            raise
        self._channels[ref.id] = channel
        return channel

    async def list(self, labels: Mapping[str, str]) -> list[SandboxRef]:
        calls, _, _ = self._opened()
        wanted: dict[str, str | None] = {RUN: None, **{label(key): value for key, value in labels.items()}}
        return [ref_of(instance) for instance in await tagged(calls, wanted, self._patience_s)]

    async def destroy(self, ref: SandboxRef) -> None:
        calls, _, _ = self._opened()
        self._hosts.pop(ref.id, None)
        if (channel := self._channels.pop(ref.id, None)) is not None:
            channel.abort()
        await finish(terminate(calls, ref.id, self._patience_s))

    async def cause_of_death(self, ref: SandboxRef) -> str:
        calls, _, _ = self._opened()
        cause = reason_of(await instance_of(calls, ref.id, self._patience_s))
        channel = self._channels.get(ref.id)
        words = channel.stderr.decode(errors="replace").strip() if channel is not None else ""
        return f"{cause}: {words}" if cause and words else cause

    async def stock(self, count: int) -> tuple[str, ...]:
        """Launch so many machines for ``stopped_pool``: each boots once, stops itself, and waits.

        Returns:
            Their ids. ``create`` uses them; those that it never needs are yours to terminate.

        Raises:
            NoRoomError, SubstrateError: Not all of them could be launched.
        """
        from rayroll.substrates._ec2_boot import pool_user_data

        calls, _, _ = self._opened()
        if self.config.stopped_pool is None:
            raise ConfigError("stopped_pool is not set")
        tags = {POOL: self.config.stopped_pool, "Name": f"rayroll pool {self.config.stopped_pool}"}
        own = {"UserData": pool_user_data(), "InstanceInitiatedShutdownBehavior": "stop"}
        own |= tagging(tags, is_spot=False)
        chosen = [{**offer, **own} for offer in offers(self.config, self._types, SandboxSpec())]
        for offer in chosen:
            offer.pop("InstanceMarketOptions", None)  # a spot machine cannot wait
        deadline_s = time.monotonic() + self.config.create_timeout_s
        made = await asyncio.gather(*(launch(calls, chosen, secrets.token_hex(8), deadline_s) for _ in range(count)))
        return tuple(instance["InstanceId"] for instance in made)
