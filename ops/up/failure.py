"""Why a deployment failed, in the words of CloudFormation's events, and whether another zone may help."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal

from botocore.exceptions import ClientError

from ops.aws import error_code
from ops.preflight.finding import Region
from ops.preflight.stack_checks import STACKS

# Told of resources that were fine and had to stop because another one was not.
_ECHO = re.compile(r"^Resource (creation|update|deletion) cancelled|^The following resource\(s\) failed")
_LONGEST = 600


@dataclass(frozen=True)
class Failure:
    """`needs` says what may help: another `zone`, another `region`, or neither of them (`mending`)."""

    stack: str
    resource: str
    reason: str
    needs: Literal["zone", "region", "mending"]

    def __str__(self) -> str:
        """`eagleray-network, Gate: capacity: us-east-2a has no …`."""
        reason = self.reason if len(self.reason) <= _LONGEST else f"{self.reason[:_LONGEST]}…"
        return f"{self.stack}, {self.resource}: {reason}"


def newest_events(region: Region, name: str) -> dict[str, str]:
    """Id of the last event of each stack that there is: what comes later belongs to the next attempt."""
    found = {stack: next(_events(region, stack), None) for stack in _stacks(name)}
    return {stack: event["EventId"] for stack, event in found.items() if event}


def failure_since(region: Region, name: str, before: Mapping[str, str]) -> Failure | None:
    """What failed first after `before`; a lack of capacity is told before all else, since it has its own way out.

    None if no resource failed: the attempt did not come as far as CloudFormation.
    """
    failures = [_failure(stack, event) for stack in _stacks(name)
                for event in reversed(_since(region, stack, before.get(stack)))
                if event["ResourceStatus"].endswith("_FAILED") and _tells(event)]
    for needs in ("zone", "region", "mending"):
        if found := next((f for f in failures if f.needs == needs), None):
            return found
    return None


def needs(reason: str) -> Literal["zone", "region", "mending"]:
    """What another attempt needs after a failure with that reason."""
    for place in ("zone", "region"):
        if any(re.search(pattern, reason) for pattern in _patterns()[place]):
            return place
    return "mending"


def _stacks(name: str) -> Sequence[str]:
    return [f"{name}-{part}" for part in STACKS]


def _since(region: Region, stack: str, before: str | None) -> list[dict[str, Any]]:
    """Events newest first, down to the one with id `before`: all of a stack that is younger than that."""
    return list(takewhile(lambda event: event["EventId"] != before, _events(region, stack)))


def _events(region: Region, stack: str) -> Iterator[dict[str, Any]]:
    """Events newest first; none for a stack that is not there."""
    pages = region.client("cloudformation").get_paginator("describe_stack_events").paginate(StackName=stack)
    try:
        for page in pages:
            yield from page["StackEvents"]
    except ClientError as error:
        if error_code(error) != "ValidationError":
            raise


def _tells(event: Mapping[str, Any]) -> bool:
    reason = event.get("ResourceStatusReason", "")
    return bool(reason) and not _ECHO.search(reason)


def _failure(stack: str, event: Mapping[str, Any]) -> Failure:
    reason = " ".join(event["ResourceStatusReason"].split())
    return Failure(stack, event["LogicalResourceId"], reason, needs(reason))


@cache
def _patterns() -> dict[str, list[str]]:
    return json.loads((Path(__file__).parent / "failures.json").read_text())
