"""One machine on its way up: from the pool or launched, seen, reached, made a runner; and undone where that fails."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rayroll.errors import EngineDownError, SubstrateError
from rayroll.runner.build import runner_path
from rayroll.substrates import Lease, SandboxSpec
from rayroll.substrates._ec2_boot import start_command, user_data
from rayroll.substrates._ec2_calls import (
    Calls,
    Instance,
    Sightings,
    instance_of,
    is_not_found,
    launch,
    passes,
    tagged,
    tags_of,
)
from rayroll.substrates._ec2_calls import terminate as terminate_by_id
from rayroll.substrates._ec2_offers import NAME, POOL, RUN, reason_of, tagging
from rayroll.substrates._ssh import Keys, SshChannel, SshHost, UnreachableError, WrongHostError, start

if TYPE_CHECKING:
    from rayroll.substrates.ec2 import Ec2Config

__all__ = ["Start"]

DEAD = ("shutting-down", "terminated")
UNSEEN_S = 60.0
"""How long a machine that may have been made can take to be seen, and so terminated."""
UNDO_PAUSE_S = 1.0
DIAL_TIMEOUT_S = 10.0
PAUSES_S = (0.05, 0.25)
"""Between two tries to reach a machine that boots: the first and the longest."""
GRACE_S = 60.0
"""A machine that nobody has come to waits so much longer than its host, and goes off by itself."""
MACHINES = {"x86_64": "x86_64", "arm64": "aarch64"}


class Start:
    """What is known so far of one machine, for whoever goes on with it or cleans up after it.

    Args:
        offers: Requests that would do, in order of preference.
        tags: What it carries from its launch on; ``rayroll.name`` is its alone.
    """

    def __init__(
        self,
        config: Ec2Config,
        calls: Calls,
        sightings: Sightings,
        offers: Sequence[Mapping[str, Any]],
        tags: Mapping[str, str],
    ) -> None:
        self._config, self._calls, self._sightings = config, calls, sightings
        self._offers, self._tags = offers, tags
        self._deadline_s = time.monotonic() + config.create_timeout_s
        self._asking: asyncio.Future[Instance] | None = None
        self._keys: Keys
        self.id = ""
        """Known before anything else is asked about it."""
        self.is_from_pool = False
        self.host: SshHost
        self.channel: SshChannel | None = None
        self.phases_s: dict[str, float] = {}
        self.facts: dict[str, str] = {}
        self.waiting_for = "EC2"

    async def run(self, spec: SandboxSpec, lease: Lease) -> SshChannel:
        """From nothing to a runner that has been started; the caller's deadline holds."""
        start_s = time.monotonic()
        self._keys = await asyncio.to_thread(Keys.make)
        instance = await self._from_pool() or await self._launched()
        self.phases_s["create"] = time.monotonic() - start_s
        self.facts = {
            "instance": self.id,
            "type": instance.get("InstanceType", ""),
            "ami": instance.get("ImageId", ""),
            "zone": instance.get("Placement", {}).get("AvailabilityZone", ""),
            "market": instance.get("InstanceLifecycle", "on-demand"),
        }
        machine = MACHINES.get(instance.get("Architecture", "x86_64"), "")
        runner = await asyncio.to_thread(lambda: runner_path(machine).read_bytes())
        self.host = SshHost(self._address(instance), self._keys)
        self.channel = await self._reached(start_command(spec, lease, len(runner)), runner)
        self.phases_s["boot"] = time.monotonic() - start_s - self.phases_s["create"]
        return self.channel

    # getting one

    async def _launched(self) -> Instance:
        data = user_data(self._keys, self._config.create_timeout_s + GRACE_S)
        own = {"UserData": data, **tagging(self._tags, is_spot=self._config.market == "spot")}
        # Not cancelled with us: a call that nobody waits for any more may still make a machine.
        self._asking = asyncio.ensure_future(
            launch(self._calls, [{**offer, **own} for offer in self._offers], self._tags[NAME], self._deadline_s)
        )
        self.id = (await asyncio.shield(self._asking))["InstanceId"]
        return await self._running()

    async def _from_pool(self) -> Instance | None:
        """A stopped machine, started; None: there is no pool, or nothing in it."""
        pool = self._config.stopped_pool
        if pool is None:
            return None
        for instance in await tagged(self._calls, {POOL: pool}, self._deadline_s, states=["stopped"]):
            if RUN in tags_of(instance):
                continue
            self.id, self.is_from_pool = instance["InstanceId"], True
            if await self._wake():
                running = await self._running()
                if tags_of(running).get(NAME) == self._tags[NAME]:
                    return running
            self.id, self.is_from_pool = "", False
        return None

    async def _wake(self) -> bool:
        """Tag it, give it our keys, start it. False: another host was faster.

        Two that begin at the same moment may both get this far: the tags are of one of them then, the other goes on.
        """
        data = user_data(self._keys, self._config.create_timeout_s + GRACE_S, has_booted=True).encode()
        tags = [{"Key": key, "Value": value} for key, value in self._tags.items()]
        steps: list[tuple[str, dict[str, Any]]] = [
            ("create_tags", {"Resources": [self.id], "Tags": tags}),
            ("modify_instance_attribute", {"InstanceId": self.id, "UserData": {"Value": data}}),
            (
                "modify_instance_attribute",
                {"InstanceId": self.id, "InstanceInitiatedShutdownBehavior": {"Value": "terminate"}},
            ),
            ("start_instances", {"InstanceIds": [self.id]}),
        ]
        try:
            for operation, parameters in steps:
                await self._calls(operation, self._deadline_s, **parameters)
        except SubstrateError as error:
            if error.facts.get("code") == "IncorrectInstanceState" or is_not_found(error):
                return False
            raise
        return True

    async def _running(self) -> Instance:
        """What EC2 says once it runs. What EC2 does not know yet, it may know soon."""
        self.waiting_for = "the machine to run"
        patience_s = self._config.visible_timeout_s
        unknown_since_s: float | None = None
        while True:
            try:
                instance = await self._sightings.next(self.id)
            except SubstrateError as error:
                if not passes(error):
                    raise
                self.waiting_for = str(error)
                unknown_since_s = None  # nothing was said about the machine
                continue
            now_s = time.monotonic()
            unknown_since_s = None if instance is not None else unknown_since_s or now_s
            state = "" if instance is None else instance["State"]["Name"]
            if unknown_since_s is not None and now_s > unknown_since_s + patience_s:
                raise SubstrateError(
                    "EC2 does not know the machine that it launched", id=self.id, visible_timeout_s=patience_s
                )
            if state in DEAD:
                raise SubstrateError("the machine ended while it started", id=self.id, reason=reason_of(instance))
            if instance is not None and state == "running" and self._address(instance):
                return instance

    def _address(self, instance: Instance) -> str:
        return str(instance.get("PublicIpAddress" if self._config.address == "public" else "PrivateIpAddress") or "")

    async def _reached(self, command: str, runner: bytes) -> SshChannel:
        pause_s, longest_s = PAUSES_S
        while True:
            try:
                return await start(self.host, command, runner, timeout_s=DIAL_TIMEOUT_S)
            except (UnreachableError, WrongHostError) as error:
                # Until our user data has run, the image's own sshd answers, with a key of its own.
                self.waiting_for = str(error)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, longest_s)

    # undoing it

    async def undo(self) -> None:
        """Terminate what was made, or may have been; returns when EC2 has taken that, or knows nothing for a minute."""
        if self.channel is not None:
            self.channel.abort()
        may_be = bool(self.id)
        if self._asking is not None:
            await asyncio.wait({self._asking})
            error = self._asking.exception()
            if error is None:
                self.id = self._asking.result()["InstanceId"]
            may_be = error is None or isinstance(error, EngineDownError)
        until_s = time.monotonic() + UNSEEN_S
        while may_be and not await self._is_undone(until_s) and time.monotonic() < until_s:  # noqa: ASYNC110 - EC2's
            await asyncio.sleep(UNDO_PAUSE_S)

    async def _is_undone(self, until_s: float) -> bool:
        if self.is_from_pool:
            instance = await instance_of(self._calls, self.id, until_s)
            if instance is None or tags_of(instance).get(NAME) != self._tags[NAME]:
                return True  # another host's
        if self.id:
            return await terminate_by_id(self._calls, self.id, until_s)
        found = await tagged(self._calls, {NAME: self._tags[NAME]}, until_s)
        for instance in found:
            await terminate_by_id(self._calls, instance["InstanceId"], until_s)
        return bool(found)
