"""Calls to EC2: a bounded number at a time, each made again while EC2 asks for patience, its errors as ours."""

from __future__ import annotations

import asyncio
import functools
import importlib.metadata
import importlib.util
import os
import random
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rayroll.errors import ConfigError, EngineDownError, ImageError, NoRoomError, RayrollError, SubstrateError

__all__ = [
    "ALIVE",
    "Calls",
    "Instance",
    "Sightings",
    "connect",
    "instance_of",
    "is_not_found",
    "launch",
    "passes",
    "tagged",
    "tags_of",
    "terminate",
]

FIX = "pip install 'rayroll[aws]'"
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 8.0
OUTAGE_PATIENCE_S = 20.0
"""How long EC2 may not answer at all."""
IDS_A_LOOK = 200
"""The most values that a filter takes."""

ALIVE = ("pending", "running", "stopping", "stopped")

Instance = Mapping[str, Any]
"""As DescribeInstances has it."""

PATIENCE = {"RequestLimitExceeded", "Throttling", "ThrottlingException", "RequestThrottled", "ResourceLimitExceeded",
            "InternalError", "InternalFailure", "Unavailable", "ServiceUnavailable"}  # fmt: skip
NO_ROOM = {"InsufficientInstanceCapacity", "InsufficientHostCapacity", "InsufficientReservedInstanceCapacity",
           "InsufficientCapacity", "InsufficientFreeAddressesInSubnet", "UnfulfillableCapacity", "Unsupported",
           "InstanceLimitExceeded", "VcpuLimitExceeded", "MaxSpotInstanceCountExceeded",
           "SpotMaxPriceTooLow"}  # fmt: skip
NOT_FOUND = {"InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed"}
FIXES = {
    "AuthFailure": "look at the credentials: aws sts get-caller-identity",
    "ExpiredToken": "log in again",
    "RequestExpired": "log in again, or set this machine's clock",
    "InvalidClientTokenId": "look at the credentials: aws sts get-caller-identity",
    "SignatureDoesNotMatch": "look at the secret key, and at this machine's clock",
    "UnauthorizedOperation": "allow what docs/substrates/ec2.md lists to this user or role",
    "VPCIdNotSpecified": "there is no default VPC: set subnets",
}


def connect(config: Any) -> tuple[Any, Any, str]:
    """The client, its session and the SDK's version; nothing said yet. Reads files, and imports for half a second.

    Raises:
        ConfigError: The SDK is missing, or no profile, region or credentials are found.
    """
    missing = [name for name in ("boto3", "asyncssh") if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"the substrate 'ec2' needs {' and '.join(missing)}", fix=FIX)
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    importlib.import_module("rayroll.substrates._ssh")  # now and here, or it would be read on the event loop
    # Without its own retries: it knows neither our deadline nor the other subnets.
    settings = Config(
        retries={"total_max_attempts": 1},
        connect_timeout=min(5.0, config.request_timeout_s),
        read_timeout=config.request_timeout_s,
        max_pool_connections=config.max_calls,
        user_agent_extra="rayroll",
    )
    region = config.region or os.environ.get("AWS_REGION")  # which boto3, of all SDKs, does not look at
    try:
        session = boto3.session.Session(profile_name=config.profile, region_name=region)
        client = session.client("ec2", endpoint_url=config.endpoint_url, config=settings)
        found = session.get_credentials()
    except (BotoCoreError, ValueError) as error:
        raise ConfigError(
            "boto3 cannot be set up", reason=str(error), fix="set region (AWS_REGION) and profile (AWS_PROFILE)"
        ) from error
    if found is None:
        raise ConfigError("no AWS credentials are found", fix="aws configure, or set AWS_PROFILE")
    return client, session, importlib.metadata.version("boto3")


class Calls:
    """One client's operations, by name."""

    def __init__(self, client: Any, most: int) -> None:
        self._client = client
        self._pool = ThreadPoolExecutor(most, thread_name_prefix="rayroll-ec2")

    async def __call__(self, operation: str, deadline_s: float, **parameters: Any) -> dict[str, Any]:
        """Call until there is an answer, or until ``deadline_s`` on the monotonic clock.

        Every operation here may be repeated: RunInstances by its client token, the others by what they do.

        Raises:
            NoRoomError: There is no such machine to be had now; not tried again here.
            EngineDownError: EC2 does not answer.
            ImageError, SubstrateError: It refused; ``code`` is EC2's own.
        """
        pause_s = FIRST_PAUSE_S
        outage_ends_s = time.monotonic() + OUTAGE_PATIENCE_S
        while True:
            try:
                return await self.once(operation, **parameters)
            except SubstrateError as error:
                is_down = isinstance(error, EngineDownError)
                wait_s = random.uniform(pause_s / 2, pause_s)
                until_s = min(deadline_s, outage_ends_s) if is_down else deadline_s
                if not passes(error) or time.monotonic() + wait_s > until_s:
                    raise
            await asyncio.sleep(wait_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def once(self, operation: str, **parameters: Any) -> dict[str, Any]:
        """The same, and no patience."""
        call = functools.partial(getattr(self._client, operation), **parameters)
        try:
            answer: dict[str, Any] = await asyncio.get_running_loop().run_in_executor(self._pool, call)
            return answer
        except Exception as error:
            ours = _translated(error, operation)
            if ours is None:
                raise
            raise ours from error

    def close(self) -> None:
        """Wait for nobody. Idempotent."""
        self._pool.shutdown(wait=False)
        self._client.close()


async def launch(calls: Calls, offers: Sequence[Mapping[str, Any]], token: str, deadline_s: float) -> Instance:
    """One machine: of the first offer for which there is room, then of the next, and round again until the deadline.

    However often it is asked for, an offer has one client token, so that one of them makes one machine.

    Raises:
        NoRoomError: None had room; ``refused`` says why not.
        SubstrateError: EC2 refused for another reason.
    """
    refused: dict[str, str] = {}
    pause_s = FIRST_PAUSE_S
    while True:
        for number, offer in enumerate(offers):
            try:
                answer = await calls("run_instances", deadline_s, ClientToken=f"{token}-{number}", **offer)
            except NoRoomError as error:
                refused[_name(offer)] = str(error.facts.get("code"))
            else:
                found: Instance = answer["Instances"][0]
                return found
        wait_s = random.uniform(pause_s / 2, pause_s)
        if time.monotonic() + wait_s > deadline_s:
            raise NoRoomError(
                "EC2 has no room for this machine", refused=refused, fix="name more instance_types and subnets"
            )
        await asyncio.sleep(wait_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def _name(offer: Mapping[str, Any]) -> str:
    return " in ".join(str(offer[key]) for key in ("InstanceType", "SubnetId") if key in offer) or "the template"


def passes(error: SubstrateError) -> bool:
    """Whether the same call may have an answer later: EC2 is away, or is asked too often."""
    return isinstance(error, EngineDownError) or error.facts.get("code") in PATIENCE


class Sightings:
    """One look at EC2 for however many wait for their machine: a hundred that ask by themselves are throttled."""

    def __init__(self, calls: Calls, every_s: float) -> None:
        self._calls = calls
        self._every_s = every_s
        self._waiting: dict[str, list[asyncio.Future[Instance | None]]] = {}
        self._task: asyncio.Task[None] | None = None

    async def next(self, id: str) -> Instance | None:
        """What the next look sees; None: no such instance, or not yet."""
        future: asyncio.Future[Instance | None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(id, []).append(future)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="rayroll ec2 sightings")
        return await future

    async def close(self) -> None:
        """Look no more. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        pause_s = self._every_s
        while self._waiting:
            waiting, self._waiting = self._waiting, {}
            seen: dict[str, Instance] = {}
            failed: Exception | None = None
            try:
                seen = await self._look(list(waiting))
            except Exception as error:  # told to those who wait
                failed = error
            for id, futures in waiting.items():
                for future in futures:
                    if future.done():
                        continue  # nobody waits any more
                    if failed is None:
                        future.set_result(seen.get(id))
                    else:
                        future.set_exception(failed)
            pause_s = self._every_s if failed is None else min(2 * pause_s, LONGEST_PAUSE_S)
            await asyncio.sleep(random.uniform(pause_s / 2, pause_s) if failed else pause_s)

    async def _look(self, ids: Sequence[str]) -> dict[str, Instance]:
        seen: dict[str, Instance] = {}
        for at in range(0, len(ids), IDS_A_LOOK):
            # By a filter: asked for by id, one that cannot be seen yet would make an error of the whole answer.
            asked = {"Name": "instance-id", "Values": list(ids[at : at + IDS_A_LOOK])}
            try:
                found = _instances(await self._calls.once("describe_instances", Filters=[asked]))
            except SubstrateError as error:
                if not is_not_found(error):
                    raise
                continue
            seen |= {instance["InstanceId"]: instance for instance in found}
        return seen


async def tagged(
    calls: Calls, tags: Mapping[str, str | None], deadline_s: float, *, states: Sequence[str] = ALIVE
) -> list[Instance]:
    """Instances with all of these tags; None: with any value."""
    filters = [{"Name": "instance-state-name", "Values": [*states]}]
    for key, value in tags.items():
        by_key = {"Name": "tag-key", "Values": [key]}
        filters.append(by_key if value is None else {"Name": f"tag:{key}", "Values": [_literally(value)]})
    wanted = {key: value for key, value in tags.items() if value is not None}
    found: list[Instance] = []
    more: dict[str, str] = {}
    while True:
        answer = await calls("describe_instances", deadline_s, Filters=filters, MaxResults=1000, **more)
        found += [i for i in _instances(answer) if wanted.items() <= tags_of(i).items()]
        if not answer.get("NextToken"):
            return found
        more = {"NextToken": answer["NextToken"]}


async def instance_of(calls: Calls, id: str, deadline_s: float) -> Instance | None:
    """One instance, in whatever state; None: EC2 knows none of this id."""
    try:
        found = _instances(await calls("describe_instances", deadline_s, InstanceIds=[id]))
    except SubstrateError as error:
        if is_not_found(error):
            return None
        raise
    return found[0] if found else None


async def terminate(calls: Calls, id: str, deadline_s: float) -> bool:
    """Whether EC2 knew it: if not, it is gone, was never there, or cannot be seen yet."""
    try:
        await calls("terminate_instances", deadline_s, InstanceIds=[id])
    except SubstrateError as error:
        if is_not_found(error):
            return False
        raise
    return True


def _instances(answer: Mapping[str, Any]) -> list[Instance]:
    return [instance for reservation in answer["Reservations"] for instance in reservation["Instances"]]


def _literally(value: str) -> str:
    """A value for a filter, in which ``*`` and ``?`` stand for others."""
    return "".join(f"\\{character}" if character in "*?\\" else character for character in value)


def tags_of(instance: Instance) -> dict[str, str]:
    """Its tags by key."""
    return {tag["Key"]: tag["Value"] for tag in instance.get("Tags", ())}


def is_not_found(error: RayrollError) -> bool:
    """EC2 knows no such instance: it never was, is long gone, or cannot be seen yet."""
    return error.facts.get("code") in NOT_FOUND


def _translated(error: Exception, operation: str) -> RayrollError | None:
    """None: it is not EC2's."""
    from botocore.exceptions import (
        BotoCoreError,
        ClientError,
        ConnectionError,
        HTTPClientError,
        NoCredentialsError,
        PartialCredentialsError,
    )
    from botocore.parsers import ResponseParserError

    if isinstance(error, ResponseParserError):  # cut off, or whoever stands between wrote it
        return EngineDownError("EC2's answer cannot be read", reason=str(error), operation=operation)
    if isinstance(error, ClientError):
        code = str(error.response.get("Error", {}).get("Code", ""))
        said = str(error.response.get("Error", {}).get("Message", ""))
        facts: dict[str, Any] = {"code": code, "said": said, "operation": operation}
        if code in FIXES:
            facts["fix"] = FIXES[code]
        if code in NO_ROOM:
            return NoRoomError("EC2 has no room for this machine now", **facts)
        if code.startswith("InvalidAMIID"):
            return ImageError("EC2 does not have this AMI", **facts)
        if int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)) >= 500 and code not in PATIENCE:
            return EngineDownError("EC2 failed", **facts)
        return SubstrateError("EC2 refused", **facts)
    if isinstance(error, (NoCredentialsError, PartialCredentialsError)):
        return SubstrateError("no AWS credentials are found", fix="aws configure, or set AWS_PROFILE")
    if isinstance(error, (ConnectionError, HTTPClientError)):
        return EngineDownError(
            "EC2 does not answer", reason=str(error), operation=operation, fix="look at the network, and at the region"
        )
    if isinstance(error, BotoCoreError):
        return SubstrateError("the call to EC2 could not be made", reason=str(error), operation=operation)
    return None
