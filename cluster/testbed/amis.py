#!/usr/bin/env python3
"""AMIs of the EC2 stand-in for every task of a pack: what its Dockerfile builds, as a machine with an SSH server.

Prints a setting for ``rayroll run`` and ``rayroll sweep``: ``--set "$(cluster/testbed/amis.py repo_fix 'spanset-*')"``.
Runs in the project's virtual environment, with the test bed's variables set.
"""

from __future__ import annotations

import asyncio
import fnmatch
import json
import os
import sys

import boto3

from rayroll.substrates import SandboxSpec
from rayroll.substrates._published import Publisher
from rayroll.tasks import load_pack


async def main(pack: str, pattern: str = "*") -> None:
    """Build what the engine does not have yet, and register it."""
    account = {"region_name": "eu-central-1", "aws_access_key_id": "testbed", "aws_secret_access_key": "testbed"}
    ec2 = boto3.client("ec2", endpoint_url=os.environ["RAYROLL_TESTBED_EC2"], **account)
    registered = {image["Name"]: image["ImageId"] for image in ec2.describe_images(Owners=["self"])["Images"]}
    amis, publisher = {}, Publisher("ec2", "", None)
    for task in load_pack(pack).tasks:
        if fnmatch.fnmatch(task.id.partition("/")[2], pattern):
            image, _ = await publisher.ensure(SandboxSpec(task.image, task.environment), "", {})
            name = f"docker:{image}"
            amis[image] = registered.get(name) or ec2.register_image(Name=name)["ImageId"]
            print(f"{task.id}: {image} is {amis[image]}", file=sys.stderr)
    await publisher.close()
    print(f"ec2.images={json.dumps(amis)}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
