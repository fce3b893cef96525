"""All that `eagleray status` shows, asked of CloudFormation, the cluster and the run's storage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from eagleray import catalog
from k8s.deadlines import ENDS_BY
from ops.aws import FAILURES, Aws, trouble
from ops.cluster_parts import DEVICE_PLUGINS, OPERATOR, Part
from ops.deployed_run import chosen, is_over, of_cluster, run_of
from ops.errors import CommandError, NothingToDoError
from ops.kube import KubeError, Namespace
from ops.preflight.finding import Region
from ops.preflight.stack_checks import STACKS, holds_resources, stack_state
from ops.run_cost import RunCost, run_cost
from ops.spending import Spent
from ops.status.pods import PodState, pod_state
from ops.status.run_state import RunState, run_state
from ops.status.spent import spent
from settings import Settings
from settings.prices import Prices

_LOG_LINES = 200
GPU, EFA = "nvidia.com/gpu", "vpc.amazonaws.com/efa"


@dataclass(frozen=True)
class StackState:
    """A stack of the deployment; `status` None: it is not there."""

    name: str
    status: str | None
    why: str = ""
    created: datetime | None = None


@dataclass(frozen=True)
class NodeState:
    """A node and what it has to give."""

    name: str
    instance_type: str
    state: str
    gpus: int
    efa: int


@dataclass(frozen=True)
class JobState:
    """A RayJob: KubeRay's words for it, its reason, and since when.

    `deadline`: when KubeRay ends it, if it is still there then; `ends_by`: the setting that says so.
    """

    name: str
    deployment: str
    job: str
    why: str
    since: datetime | None
    ended: datetime | None
    is_over: bool
    deadline: datetime | None = None
    ends_by: str | None = None

    @property
    def succeeded(self) -> bool:
        """Whether it went to its end."""
        return self.is_over and self.job == "SUCCEEDED"


@dataclass(frozen=True)
class Unknown:
    """What could not be asked, why, and what helps (in the same words)."""

    what: str
    why: str


@dataclass
class Snapshot:
    """One look. What could not be asked is None, and in `unknown`. `shown` is the job whose run is told."""

    settings: Settings
    at: datetime
    context: str | None = None
    stacks: list[StackState] | None = None
    nodes: list[NodeState] | None = None
    pods: list[PodState] | None = None
    jobs: list[JobState] | None = None
    shown: JobState | None = None
    run: RunState | None = None
    cost: RunCost | None = None
    spent: Spent | None = None
    unknown: list[Unknown] = field(default_factory=list)


class Looker:
    """Looks again and again, with the same clients.

    Args:
        job: name of the RayJob whose run is told; None for the newest that trains.
    """

    def __init__(self, settings: Settings, job: str | None, aws: Callable[[], Aws],
                 cluster: Callable[[str], Namespace], prices: Prices) -> None:
        self._settings, self._job, self._prices = settings, job, prices
        self._aws_of, self._cluster_of = aws, cluster
        self._aws: Aws | None = None

    def look(self) -> Snapshot:
        """What is there now.

        Raises:
            NothingToDoError: if neither AWS nor the cluster can be asked, or there is no such job.
        """
        found = Snapshot(self._settings, datetime.now(UTC))
        self._ask_aws(found)
        raw_nodes = self._ask_cluster(found)
        if found.stacks is None and found.jobs is None:
            raise NothingToDoError("neither AWS nor the cluster can be asked:\n" + "\n".join(
                f"  {unknown.what}: {unknown.why}" for unknown in found.unknown))
        if raw_nodes is not None or found.stacks is not None:
            found.spent = spent(raw_nodes or [], _services(self._settings, found.stacks or []),
                                self._settings.region, self._prices, found.at)
        return found

    def _ask_aws(self, found: Snapshot) -> None:
        try:
            self._aws = self._aws or self._aws_of()
            region = Region(self._aws, self._settings.region, "")
            found.stacks = [_stack(region, f"{self._settings.name}-{part}") for part in STACKS]
        except CommandError as error:
            found.unknown.append(Unknown("stacks", str(error)))
        except FAILURES as error:
            found.unknown.append(Unknown("stacks", str(trouble(error))))

    def _ask_cluster(self, found: Snapshot) -> Sequence[Mapping[str, Any]] | None:
        """Raw nodes, or None."""
        try:
            namespace = self._cluster_of(self._settings.ray.namespace)
            found.context = namespace.context
            ray_jobs = of_cluster(namespace.list("RayJob"), self._settings.name)
        except CommandError as error:
            found.unknown.append(Unknown("cluster", str(error)))
            return None
        found.jobs = [job_state(job) for job in ray_jobs]
        if not ray_jobs and namespace.get("RayCluster", self._settings.name) is None:
            found.unknown.append(Unknown("jobs", (
                f"the cluster of context {namespace.context} has no RayCluster {self._settings.name} in namespace "
                f"{namespace.name}; cdk deploy --all makes it, or another context has it "
                "(kubectl config get-contexts)")))
        self._ask_job(found, namespace, ray_jobs)
        return self._ask_nodes_and_pods(found, namespace)

    def _ask_job(self, found: Snapshot, namespace: Namespace, ray_jobs: list[dict[str, Any]]) -> None:
        raw = chosen(ray_jobs, self._job)
        if raw is None:
            return
        found.shown = job_state(raw)
        run = run_of(raw, namespace.config_maps())
        if run is None:
            why = f"the settings of RayJob {found.shown.name} are gone from the cluster"
            found.unknown.append(Unknown("run", why))
            return
        try:
            log = namespace.submitter_log(found.shown.name, _LOG_LINES)
        except KubeError:
            log = ""
        found.run = run_state(run, log, found.shown.ended or found.at)
        found.cost = run_cost(found.run.billed, self._prices)
        if found.run.trouble:
            found.unknown.append(Unknown("run", found.run.trouble))

    def _ask_nodes_and_pods(self, found: Snapshot, namespace: Namespace) -> Sequence[Mapping[str, Any]] | None:
        nodes = None
        try:
            found.pods = [pod_state(pod) for pod in namespace.pods()]
            nodes = namespace.nodes()
            found.nodes = [node_state(node) for node in nodes]
            found.pods += _unwell(namespace, OPERATOR) + _unwell(namespace, DEVICE_PLUGINS)
        except KubeError as error:
            found.unknown.append(Unknown("nodes and pods", str(error)))
        return nodes


def job_state(job: Mapping[str, Any]) -> JobState:
    """The state of a RayJob as the API server writes it."""
    status = job.get("status") or {}
    why = ": ".join(str(status[key]) for key in ("reason", "message") if status.get(key))
    since = _time(status.get("startTime") or job["metadata"].get("creationTimestamp"))
    seconds = job["spec"].get("activeDeadlineSeconds")
    return JobState(
        name=job["metadata"]["name"], deployment=status.get("jobDeploymentStatus") or "not looked at yet",
        job=status.get("jobStatus") or "", why=" ".join(why.split()),
        since=since, ended=_time(status.get("endTime")), is_over=is_over(job),
        deadline=since + timedelta(seconds=seconds) if since and seconds else None,
        ends_by=(job["metadata"].get("annotations") or {}).get(ENDS_BY))


def node_state(node: Mapping[str, Any]) -> NodeState:
    """What a node has to give, as the API server writes it."""
    status, labels = node.get("status") or {}, node["metadata"].get("labels") or {}
    allocatable = status.get("allocatable") or {}
    ready = {c["type"]: c for c in status.get("conditions") or []}.get("Ready") or {}
    state = "ready" if ready.get("status") == "True" else f"not ready: {ready.get('message') or 'just made'}"
    if (node.get("spec") or {}).get("unschedulable"):
        state += ", cordoned"
    return NodeState(node["metadata"]["name"], labels.get("node.kubernetes.io/instance-type", "?"), state,
                     int(allocatable.get(GPU, 0)), int(allocatable.get(EFA, 0)))


def _unwell(namespace: Namespace, part: Part) -> list[PodState]:
    pods = namespace.within(part.namespace or namespace.name).pods(part.labels)
    return [state for state in map(pod_state, pods) if not state.is_well]


def _stack(region: Region, name: str) -> StackState:
    found = stack_state(region, name)
    if found is None:
        return StackState(name, None)
    return StackState(name, found["StackStatus"], " ".join(found.get("StackStatusReason", "").split()),
                      found.get("CreationTime"))


def _services(settings: Settings, stacks: Sequence[StackState]) -> dict[str, datetime]:
    """What bills by the hour besides nodes, and since when: as old as the stack that makes it."""
    extended = catalog.eks_versions()[settings.cluster.version]["support"] == "extended"
    makers = {"network": "nat_gateway", "cluster": "eks_extended" if extended else "eks_standard"}
    return {makers[part]: stack.created for stack in stacks
            if (part := stack.name.rpartition("-")[2]) in makers and stack.status and stack.created
            and holds_resources(stack.status)}


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
