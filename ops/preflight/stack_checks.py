"""CloudFormation: the CDK's bootstrap, and the stacks of an earlier deployment."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError

from ops.aws import error_code
from ops.preflight.finding import Finding, Region

STACKS = ("network", "cluster", "platform", "training")
"""The stacks of a deployment, without its name, in the order they are deployed in."""

BOOTSTRAP_VERSION = 6
"""Oldest bootstrap stack that these templates deploy with; each says so in its CheckBootstrapVersion rule."""

_DEFAULT_QUALIFIER = "hnb659fds"
_GONE = {"DELETE_COMPLETE", "ROLLBACK_COMPLETE", "REVIEW_IN_PROGRESS"}
_BLOCKED = {"ROLLBACK_FAILED", "DELETE_FAILED"}


def holds_resources(status: str) -> bool:
    """Whether a stack of that status has made anything that is still there, or is about to."""
    return status not in ("DELETE_COMPLETE", "REVIEW_IN_PROGRESS")


def bootstrap(region: Region) -> Iterator[Finding]:
    """Whether the CDK has its bucket and roles in the region, new enough."""
    command = f"cdk bootstrap aws://{region.account}/{region.name}"
    name = f"/cdk-bootstrap/{_qualifier()}/version"
    try:
        version = int(region.client("ssm").get_parameter(Name=name)["Parameter"]["Value"])
    except ClientError as error:
        if error_code(error) != "ParameterNotFound":
            raise
        yield Finding("bootstrap", "failed", f"the CDK is not set up in {region.name} (no {name})", command)
        return
    if version < BOOTSTRAP_VERSION:
        yield Finding("bootstrap", "failed", f"version {version} is older than the {BOOTSTRAP_VERSION} needed",
                      command)
    else:
        yield Finding("bootstrap", "ok", f"version {version}")


def _qualifier() -> str:
    """The one of ./cdk.json, which people change to have several bootstraps beside each other."""
    try:
        context = json.loads(Path("cdk.json").read_text())["context"]
    except (OSError, ValueError, KeyError, TypeError):
        return _DEFAULT_QUALIFIER
    return context.get("@aws-cdk/core:bootstrapQualifier", _DEFAULT_QUALIFIER)


def stack_state(region: Region, stack: str) -> dict[str, Any] | None:
    """What CloudFormation says of a stack; None if there is none of that name."""
    try:
        return region.client("cloudformation").describe_stacks(StackName=stack)["Stacks"][0]
    except ClientError as error:
        if error_code(error) == "ValidationError" and "does not exist" in str(error):
            return None
        raise


def stands(region: Region, stack: str) -> bool:
    """True if the stack has resources."""
    state = stack_state(region, stack)
    return state is not None and state["StackStatus"] not in _GONE


def stacks(region: Region, name: str) -> Iterator[Finding]:
    """What stands of deployment `name`, and what of it would stop another deployment."""
    standing = []
    for stack in (f"{name}-{part}" for part in STACKS):
        state = stack_state(region, stack)
        if state is None or state["StackStatus"] in _GONE:
            continue
        standing.append(stack)
        yield from _obstacle(region, stack, state["StackStatus"])
    said = f"standing: {', '.join(standing)}" if standing else f"none of {name}-* stands yet"
    yield Finding("stacks", "ok", said)


def obstacles(region: Region, name: str) -> list[Finding]:
    """What of the standing stacks would stop another deployment."""
    return [finding for finding in stacks(region, name) if finding.status == "failed"]


def _obstacle(region: Region, stack: str, status: str) -> Iterator[Finding]:
    at = f"--region {region.name} --stack-name {stack}"
    if status.endswith("_IN_PROGRESS"):
        yield Finding("stacks", "failed", f"{stack} is {status}: another deployment is at work",
                      f"wait for its end: aws cloudformation describe-stack-events {at}")
    elif status in _BLOCKED:
        yield Finding("stacks", "failed", f"{stack} is {status}", f"aws cloudformation delete-stack {at}")
    elif status == "UPDATE_ROLLBACK_FAILED":
        yield Finding("stacks", "failed", f"{stack} is {status}",
                      f"aws cloudformation continue-update-rollback {at}")
