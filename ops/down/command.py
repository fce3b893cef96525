"""The way down: jobs, Ray clusters, stacks; then a look for what still bills."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from rich.console import Console
from rich.markup import escape

from ops.aws import FAILURES, Aws, trouble
from ops.context import Context
from ops.down.leftovers import Leftover, leftovers
from ops.errors import CommandError, StoppedError
from ops.interrupts import Interrupts, interrupts
from ops.kube import KubeError, Namespace, connect
from ops.preflight.finding import Region
from ops.preflight.identity import identity
from ops.preflight.stack_checks import STACKS, holds_resources, stack_state
from ops.up import cdk

_EVERY_SECONDS = 2.0
_GONE_SECONDS = 300.0
"""For the finalizers of Ray objects, which KubeRay's operator takes away."""


@dataclass(frozen=True)
class Wanted:
    """What was asked for; `go` yes: unasked."""

    context: Context
    go: Literal["ask", "yes"] = "ask"


def run(wanted: Wanted, screen: Console, confirm: Callable[[str], bool], aws: Callable[[], Aws] = Aws,
        cluster: Callable[[str], Namespace] = connect) -> int:
    """Take the deployment down. 0: all stacks are gone; 1: one is not, and the screen says why.

    Raises:
        CredentialsError, NothingToDoError: where nothing was started.
        StoppedError: if a signal came; what CloudFormation has begun goes on by itself.
    """
    cdk.require_cdk()
    settings = wanted.context.settings()
    clients = aws()
    who = identity(clients, [settings.region], settings.account)
    way = _WayDown(wanted, screen, Region(clients, settings.region, who.account), cluster)
    try:
        if not way.show() or (wanted.go == "ask" and not confirm("Take all of this down?")):
            way.say("Nothing was changed.")
            return 0
        with interrupts() as signals:
            return way.go(signals)
    except StoppedError as stop:
        raise StoppedError(stop.exit_code - 128, "stopped. What CloudFormation has begun goes on by itself; the "
                           "same command goes on from there") from None
    except FAILURES as error:
        raise CommandError(f"{trouble(error)}; the same command goes on from here") from None


class _WayDown:
    """One run of it."""

    def __init__(self, wanted: Wanted, screen: Console, region: Region,
                 cluster: Callable[[str], Namespace]) -> None:
        self._context, self._screen, self._region, self._cluster = wanted.context, screen, region, cluster
        self._settings = wanted.context.settings()

    def say(self, text: str) -> None:
        """One line, as it is."""
        self._screen.print(escape(text), highlight=False, soft_wrap=True)

    def show(self) -> bool:
        """Say what goes and what stays. False where no stack stands; then what still bills is told too."""
        standing = self._standing()
        if not standing:
            self.say(f"No stack of {self._settings.name} stands in {self._region.name}.")
            self._tell_leftovers()
            return False
        self.say(f"Goes from {self._region.name}, account {self._region.account}: all RayJobs and RayClusters, and")
        for stack in reversed(standing):
            if stack["StackStatus"] == "DELETE_FAILED":
                self._tell_stack(stack)
            else:
                self.say(f"  {stack['StackName']}  {stack['StackStatus']}")
        buckets = [output["OutputValue"] for stack in standing for output in stack.get("Outputs", [])
                   if output["OutputKey"] == "Bucket"]
        self.say("Stays: " + (f"bucket {', '.join(buckets)} with checkpoints and results" if buckets
                              else "the results bucket, if there is one") + ", and the CDK's own bootstrap.")
        return True

    def go(self, signals: Interrupts) -> int:
        """Everything but the question."""
        self._end_ray()
        code = cdk.destroy(self._context, signals)
        left = self._standing()
        for stack in left:
            self._tell_stack(stack)
        if code != 0 and not left:
            self.say(f"cdk destroy ended with exit code {code}, but no stack is left.")
        self._tell_leftovers()
        return 1 if left else 0

    def _standing(self) -> list[dict[str, Any]]:
        found = [stack_state(self._region, f"{self._settings.name}-{part}") for part in STACKS]
        return [stack for stack in found if stack and holds_resources(stack["StackStatus"])]

    def _end_ray(self) -> None:
        """Jobs before their clusters, while the operator that owns their finalizers runs."""
        try:
            namespace = self._cluster(self._settings.ray.namespace)
            for kind in ("RayJob", "RayCluster"):
                names = [found["metadata"]["name"] for found in namespace.list(kind)]
                for name in names:
                    namespace.delete(kind, name)
                self._wait_until_gone(namespace, kind, names)
        except CommandError as error:
            self.say(f"Ray objects: {error}. Going on: CloudFormation deletes what it made, from within the VPC.")

    def _wait_until_gone(self, namespace: Namespace, kind: str, names: list[str]) -> None:
        deadline = time.monotonic() + _GONE_SECONDS
        left = names
        while left := [name for name in left if namespace.get(kind, name)]:
            if time.monotonic() > deadline:
                raise KubeError(
                    f"{kind} {', '.join(left)} is held by a finalizer, and KubeRay's operator does not take it "
                    f"away; to let it go: kubectl --namespace {namespace.name} patch {kind.lower()} {left[0]} "
                    "--type merge -p '{\"metadata\":{\"finalizers\":null}}'")
            time.sleep(_EVERY_SECONDS)
        if names:
            self.say(f"{kind} {', '.join(names)}: gone")

    def _tell_stack(self, stack: dict[str, Any]) -> None:
        name = stack["StackName"]
        self.say(f"{name} is {stack['StackStatus']}: {stack.get('StackStatusReason', 'no reason given')}")
        for resource, why in self._failed_resources(name):
            self.say(f"  {resource}: {why}")
        self.say("  mend that, then: aws cloudformation delete-stack "
                 f"--stack-name {name} --region {self._region.name}")

    def _failed_resources(self, stack: str) -> list[tuple[str, str]]:
        """The newest failure of each resource."""
        events = self._region.client("cloudformation").describe_stack_events(StackName=stack)["StackEvents"]
        found: dict[str, str] = {}
        for event in events:  # newest first
            if event["ResourceStatus"] == "DELETE_FAILED" and event["LogicalResourceId"] != stack:
                why = " ".join(event.get("ResourceStatusReason", "").split())
                found.setdefault(f"{event['LogicalResourceId']} ({event.get('PhysicalResourceId', '')})", why)
        return list(found.items())

    def _tell_leftovers(self) -> None:
        found = list(leftovers(self._region, self._settings.name))
        self.say("Looked for what still bills:" if found else "Nothing that still bills was found.")
        for item in found:
            if isinstance(item, Leftover):
                self.say(f"  {item.what} {item.name}: {item.command}")
            else:
                self.say(f"  {item.what}: could not be asked: {item.why}")
