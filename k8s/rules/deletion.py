"""What a RayJob deletes when it is done (`deletionStrategy`)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from k8s.rules.rule import KUBERAY, KUBERAY_CRD, VALIDATION_FAILED, Fault, rule
from k8s.rules.world import Job, World

_ORDER = ("DeleteWorkers", "DeleteCluster", "DeleteSelf")


def _strategies(world: World) -> Iterator[tuple[Job, dict, str]]:
    for job in world.jobs:
        if (strategy := job.spec.get("deletionStrategy")) is not None:
            yield job, strategy, f"{job.path}.deletionStrategy"


def _policies(strategy: dict, field: str) -> Iterator[tuple[str, str]]:
    """Each policy that is written down, old way or new, with its field."""
    for name in ("onSuccess", "onFailure"):
        if name in strategy:
            yield f"{field}.{name}.policy", (strategy[name] or {}).get("policy", "")
    for i, one in enumerate(strategy.get("deletionRules") or []):
        yield f"{field}.deletionRules[{i}].policy", one.get("policy", "")


@rule(
    "deletion-strategy",
    reason="either the rules, or the older pair onSuccess and onFailure",
    unseen="the API server refuses it",
    source=f"{KUBERAY_CRD}; {KUBERAY}",
)
def shape(world: World) -> Iterator[Fault]:
    for job, strategy, field in _strategies(world):
        old, new = {"onSuccess", "onFailure"} & set(strategy), strategy.get("deletionRules")
        if old and new:
            yield job.manifest.fault(
                field, f"has deletionRules and {' and '.join(sorted(old))}", "leave the latter out"
            )
        elif not new and len(old) < 2:
            yield job.manifest.fault(
                field, "is incomplete", "set deletionRules, or both onSuccess and onFailure"
            )
        for name in sorted(old):
            if not (strategy[name] or {}).get("policy"):
                yield job.manifest.fault(f"{field}.{name}.policy", "is missing", "set a policy")
        if new and job.spec.get("shutdownAfterJobFinishes"):
            yield job.manifest.fault(
                f"{field}.deletionRules",
                "do not go with shutdownAfterJobFinishes",
                "leave shutdownAfterJobFinishes out",
            )


@rule(
    "deletion-condition",
    reason="each rule waits for one thing, and no two for the same",
    unseen=VALIDATION_FAILED,
    source=f"{KUBERAY_CRD}; {KUBERAY}",
)
def conditions(world: World) -> Iterator[Fault]:
    for job, strategy, field in _strategies(world):
        seen = set()
        for i, one in enumerate(strategy.get("deletionRules") or []):
            condition, place = one.get("condition") or {}, f"{field}.deletionRules[{i}]"
            named = {"jobStatus", "jobDeploymentStatus"} & set(condition)
            if len(named) != 1:
                yield job.manifest.fault(
                    f"{place}.condition",
                    "has both or neither of jobStatus and jobDeploymentStatus",
                    "set exactly one",
                )
                continue
            key = (one.get("policy"), *((name, condition[name]) for name in named))
            if key in seen:
                yield job.manifest.fault(
                    place, f"{one.get('policy')} is there twice for the same condition", "leave one out"
                )
            seen.add(key)


@rule(
    "deletion-order",
    reason="workers go before the cluster, and the cluster before the job",
    unseen=VALIDATION_FAILED,
    source=KUBERAY,
)
def order(world: World) -> Iterator[Fault]:
    for job, strategy, field in _strategies(world):
        after: dict[tuple, dict[str, int]] = {}
        for one in strategy.get("deletionRules") or []:
            condition = one.get("condition") or {}
            key = (condition.get("jobStatus"), condition.get("jobDeploymentStatus"))
            after.setdefault(key, {})[one.get("policy", "")] = condition.get("ttlSeconds", 0)
        for seconds in after.values():
            present = [policy for policy in _ORDER if policy in seconds]
            for first, second in pairwise(present):
                if seconds[first] > seconds[second]:
                    yield job.manifest.fault(
                        f"{field}.deletionRules",
                        f"{first} after {seconds[first]} s comes later than {second} after {seconds[second]} s",
                        f"give {second} {seconds[first]} s or more",
                    )


@rule(
    "deletion-scope",
    reason="the autoscaler would bring workers back, and a selected cluster belongs to others",
    unseen=VALIDATION_FAILED,
    source=KUBERAY,
)
def scope(world: World) -> Iterator[Fault]:
    for job, strategy, field in _strategies(world):
        own = world.cluster_of(job)
        for place, policy in _policies(strategy, field):
            if job.spec.get("clusterSelector") and policy in ("DeleteCluster", "DeleteWorkers"):
                yield job.manifest.fault(place, f"{policy} does not go with clusterSelector", "use DeleteSelf")
            elif policy == "DeleteWorkers" and own and own.autoscaling:
                yield job.manifest.fault(
                    place, "DeleteWorkers does not go with enableInTreeAutoscaling", "use DeleteCluster"
                )
            elif (
                policy == "DeleteNone"
                and not strategy.get("deletionRules")
                and job.spec.get("shutdownAfterJobFinishes")
            ):
                yield job.manifest.fault(
                    place, "DeleteNone contradicts shutdownAfterJobFinishes", "leave one of them out"
                )
