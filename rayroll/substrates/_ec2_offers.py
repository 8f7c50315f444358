"""What EC2 is asked for: RunInstances' parameters out of a configuration and a spec, and tags to find it by."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rayroll.errors import ConfigError
from rayroll.substrates import Lease, SandboxRef, SandboxSpec
from rayroll.substrates._ec2_calls import Instance, tags_of
from rayroll.substrates._images import name_of

if TYPE_CHECKING:
    from rayroll.substrates.ec2 import Ec2Config

__all__ = ["LEASE", "NAME", "OWNER", "POOL", "RUN", "label", "offers", "reason_of", "ref_of", "tagging", "tags_for"]

RUN, OWNER, LEASE, NAME, POOL = "rayroll.run", "rayroll.owner", "rayroll.lease", "rayroll.name", "rayroll.pool"
LONGEST_TAG = 256


def offers(config: Ec2Config, types: Mapping[str, Mapping[str, Any]], spec: SandboxSpec) -> list[dict[str, Any]]:
    """Requests that would do, in order of preference; what differs from sandbox to sandbox is left out.

    Args:
        types: What EC2 says of the configuration's types, by name.

    Raises:
        ConfigError: No AMI for the image, or no type that is large enough.
    """
    same: dict[str, Any] = {"MinCount": 1, "MaxCount": 1, "InstanceInitiatedShutdownBehavior": "terminate"}
    if ami := _ami(config, spec):
        same["ImageId"] = ami
    if config.launch_template is None:
        same["MetadataOptions"] = {"HttpTokens": "required"}
    else:
        name, _, version = config.launch_template.partition(":")
        key = "LaunchTemplateId" if name.startswith("lt-") else "LaunchTemplateName"
        same["LaunchTemplate"] = {key: name, **({"Version": version} if version else {})}
    if config.security_groups:
        same["SecurityGroupIds"] = [*config.security_groups]
    if config.instance_profile is not None:
        same["IamInstanceProfile"] = {"Name": config.instance_profile}
    if config.key_name is not None:
        same["KeyName"] = config.key_name
    if config.market == "spot":
        price = {} if config.spot_max_price is None else {"MaxPrice": config.spot_max_price}
        same["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": {"SpotInstanceType": "one-time", **price}}
    chosen = [{"InstanceType": name} for name in _large_enough(config, types, spec)] or [{}]
    subnets = [{"SubnetId": subnet} for subnet in config.subnets] or [{}]
    return [{**same, **type, **subnet} for type in chosen for subnet in subnets]


def _ami(config: Ec2Config, spec: SandboxSpec) -> str | None:
    if spec.image is None and not spec.environment:
        return config.ami
    name = name_of(spec, "")
    ami = config.images.get(spec.image or name) or config.images.get(name) or spec.image or ""
    if not ami.startswith(("ami-", "resolve:ssm:")):
        what = "this image" if spec.image else "what this task's Dockerfile builds"
        raise ConfigError(
            f"no AMI is known for {what}", image=name, fix=f"make one, and name it in images: {name}=ami-..."
        )
    return ami


def _large_enough(config: Ec2Config, types: Mapping[str, Mapping[str, Any]], spec: SandboxSpec) -> list[str]:
    def is_large_enough(facts: Mapping[str, Any]) -> bool:
        has_memory = facts["MemoryInfo"]["SizeInMiB"] >= spec.memory_mib
        return bool(has_memory and facts["VCpuInfo"]["DefaultVCpus"] >= spec.cpus)

    chosen = [name for name in config.instance_types if name not in types or is_large_enough(types[name])]
    if config.instance_types and not chosen:
        raise ConfigError(
            "every one of instance_types is too small for this task",
            instance_types=config.instance_types,
            cpus=spec.cpus,
            memory_mib=spec.memory_mib,
        )
    return chosen


def tags_for(spec: SandboxSpec, lease: Lease, name: str) -> dict[str, str]:
    """A machine's tags from its launch on; ``name`` is its own.

    Raises:
        ConfigError: One does not fit.
    """
    tags = {
        **{label(key): value for key, value in spec.labels.items()},
        RUN: lease.run_id,
        OWNER: lease.owner,
        LEASE: f"{lease.duration_s:g}",
        NAME: name,
        "Name": f"rayroll {lease.run_id}"[:LONGEST_TAG],
    }
    for key, value in tags.items():
        if len(value) > LONGEST_TAG:
            raise ConfigError("a label is too long for EC2", label=key, longest=LONGEST_TAG)
    return tags


def tagging(tags: Mapping[str, str], *, is_spot: bool) -> dict[str, Any]:
    """RunInstances' parameter for tags on all that it makes."""
    kinds = ["instance", "volume", *(["spot-instances-request"] if is_spot else [])]
    each = [{"Key": key, "Value": value} for key, value in tags.items()]
    return {"TagSpecifications": [{"ResourceType": kind, "Tags": each} for kind in kinds]}


def label(name: str) -> str:
    """The tag's key for a label of ours (``run``, ``owner``, ``task``)."""
    return name if "." in name else f"rayroll.{name}"


def ref_of(instance: Instance) -> SandboxRef:
    """An instance of ours as everybody else knows it."""
    tags, state = tags_of(instance), instance["State"]["Name"]
    age_s = (datetime.now(UTC) - instance["LaunchTime"]).total_seconds()
    return SandboxRef(
        "ec2",
        instance["InstanceId"],
        tags[RUN],
        tags.get(OWNER, ""),
        "created" if state == "pending" else state,
        age_s=max(0.0, age_s),
        lease_s=float(tags.get(LEASE, 0)),
    )


def reason_of(instance: Instance | None) -> str:
    """Why it does not run, in EC2's words; "" where it does, or nobody knows."""
    if instance is None or instance["State"]["Name"] in ("pending", "running"):
        return ""
    return str(instance.get("StateReason", {}).get("Message") or instance["State"]["Name"])
