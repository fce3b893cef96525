"""Manifests as the rules see them: pods, Ray clusters and jobs, and what they are to run on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from k8s.rules.quantity import amount
from k8s.rules.rule import Manifest

GPU, EFA = "nvidia.com/gpu", "vpc.amazonaws.com/efa"
INSTANCE_TYPE = "node.kubernetes.io/instance-type"

# Where other kinds keep the template of their pods, and what selects those.
POD_TEMPLATES = {
    "Deployment": "spec.template",
    "DaemonSet": "spec.template",
    "StatefulSet": "spec.template",
    "ReplicaSet": "spec.template",
    "Job": "spec.template",
    "CronJob": "spec.jobTemplate.spec.template",
}


@dataclass(frozen=True)
class Node:
    """Nodes of one shape: allocatable CPU in millicores, memory in MiB, how many there are (None: unknown).

    `labels` and `taints` (key, value, effect) are None where only the instance type is known.
    """

    type: str
    cpu_m: int
    memory_mib: int
    gpus: int
    efa: int
    count: int | None = None
    labels: Mapping[str, str] | None = None
    taints: Sequence[Mapping[str, str]] | None = None

    @property
    def gives(self) -> dict[str, float]:
        """Allocatable amounts: cores, bytes, devices."""
        return {"cpu": self.cpu_m / 1000, "memory": self.memory_mib * 2**20, GPU: self.gpus, EFA: self.efa}


@dataclass(frozen=True)
class Surroundings:
    """What the manifests meet in the cluster.

    `nodes`: all nodes there will be; empty where that is not known. `catalog`: what instance types give.
    `complete`: these manifests are all there is but for what every cluster has, so that a reference to
    something else leads nowhere.
    """

    kubernetes: str = "1.36"
    nodes: Sequence[Node] = ()
    catalog: Mapping[str, Node] = field(default_factory=dict)
    complete: bool = False


@dataclass(frozen=True)
class Pod:
    """A pod that some object makes: `path` leads to its spec, `role` is head, worker, submitter or a kind."""

    manifest: Manifest
    path: str
    role: str
    template: dict[str, Any]
    count: int = 1

    @property
    def spec(self) -> dict[str, Any]:
        return self.template.get("spec") or {}

    @property
    def labels(self) -> dict[str, str]:
        return (self.template.get("metadata") or {}).get("labels") or {}

    @property
    def containers(self) -> list[tuple[str, dict[str, Any]]]:
        """Each container with its path, init containers too."""
        return [
            (f"{self.path}.{kind}[{i}]", container)
            for kind in ("initContainers", "containers")
            for i, container in enumerate(self.spec.get(kind) or [])
        ]

    @property
    def first(self) -> dict[str, Any]:
        """The container that KubeRay takes for Ray, or the submitter."""
        return (self.spec.get("containers") or [{}])[0]

    @property
    def asks(self) -> dict[str, float]:
        """What the scheduler reserves: requests, where absent limits, summed over the containers."""
        total: dict[str, float] = {}
        for container in self.spec.get("containers") or []:
            resources = container.get("resources") or {}
            wanted = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
            for name, value in wanted.items():
                total[name] = total.get(name, 0) + (amount(value) or 0)
        return total


@dataclass(frozen=True)
class Group:
    """A Ray head or a group of workers; `path` leads to it. An autoscaled one is counted at its largest."""

    manifest: Manifest
    path: str
    role: str
    spec: dict[str, Any]
    autoscaled: bool = False

    @property
    def params(self) -> dict[str, str]:
        return self.spec.get("rayStartParams") or {}

    @property
    def name(self) -> str:
        return self.spec.get("groupName") or self.role

    @property
    def pod(self) -> Pod:
        counted = "maxReplicas" if self.autoscaled and "maxReplicas" in self.spec else "replicas"
        count = 1 if self.role == "head" else self.spec.get(counted, 0) * self.spec.get("numOfHosts", 1)
        return Pod(
            self.manifest, f"{self.path}.template.spec", self.role, self.spec.get("template") or {}, count
        )


@dataclass(frozen=True)
class Cluster:
    """The spec of a Ray cluster, standing or inside a RayJob, RayService or RayCronJob."""

    manifest: Manifest
    path: str
    spec: dict[str, Any]

    @property
    def head(self) -> Group:
        return Group(self.manifest, f"{self.path}.headGroupSpec", "head", self.spec.get("headGroupSpec") or {})

    @property
    def workers(self) -> list[Group]:
        return [
            Group(self.manifest, f"{self.path}.workerGroupSpecs[{i}]", "worker", spec, self.autoscaling)
            for i, spec in enumerate(self.spec.get("workerGroupSpecs") or [])
        ]

    @property
    def groups(self) -> list[Group]:
        return [self.head, *self.workers]

    @property
    def autoscaling(self) -> bool:
        return bool(self.spec.get("enableInTreeAutoscaling"))

    @property
    def autoscaler_v2(self) -> bool:
        asked = (self.spec.get("autoscalerOptions") or {}).get("version") == "v2"
        return self.autoscaling and (
            asked or variables(self.head.pod.first).get("RAY_enable_autoscaler_v2") in ("1", "true")
        )

    @property
    def over_efa(self) -> bool:
        return any(EFA in group.pod.asks for group in self.workers)


@dataclass(frozen=True)
class Job:
    """The spec of a RayJob, or of those that a RayCronJob makes."""

    manifest: Manifest
    path: str
    spec: dict[str, Any]

    @property
    def mode(self) -> str:
        return self.spec.get("submissionMode", "K8sJobMode")

    @property
    def submitter(self) -> Pod | None:
        template = self.spec.get("submitterPodTemplate")
        if self.mode != "K8sJobMode" or template is None:
            return None
        return Pod(self.manifest, f"{self.path}.submitterPodTemplate.spec", "submitter", template)


def variables(container: Mapping[str, Any]) -> dict[str, str]:
    """Environment of a container as far as it is written out: a later one of the same name wins."""
    return {e.get("name", ""): e.get("value", "") for e in container.get("env") or [] if "valueFrom" not in e}


def below(body: dict[str, Any], path: str) -> Any:
    """The value at a dotted path, or None."""
    value: Any = body
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


class World:
    """All manifests of one check, without what their schemas refuse, in what surrounds them."""

    def __init__(self, manifests: Sequence[Manifest], around: Surroundings) -> None:
        self.manifests = manifests
        self.around = around

    def of(self, *kinds: str) -> Iterator[Manifest]:
        return (m for m in self.manifests if m.kind in kinds)

    @cached_property
    def jobs(self) -> list[Job]:
        jobs = [Job(m, "spec", m.body.get("spec") or {}) for m in self.of("RayJob")]
        return jobs + [
            Job(m, "spec.jobTemplate", below(m.body, "spec.jobTemplate") or {}) for m in self.of("RayCronJob")
        ]

    @cached_property
    def clusters(self) -> list[Cluster]:
        found = [Cluster(m, "spec", m.body.get("spec") or {}) for m in self.of("RayCluster")]
        found += [
            Cluster(j.manifest, f"{j.path}.rayClusterSpec", j.spec["rayClusterSpec"])
            for j in self.jobs
            if j.spec.get("rayClusterSpec")
        ]
        return found + [
            Cluster(m, "spec.rayClusterConfig", spec)
            for m in self.of("RayService")
            if (spec := below(m.body, "spec.rayClusterConfig"))
        ]

    def cluster_of(self, job: Job) -> Cluster | None:
        """The cluster that a job runs on, if it is among the manifests."""
        selected = (job.spec.get("clusterSelector") or {}).get("ray.io/cluster")
        for cluster in self.clusters:
            if selected and cluster.manifest.kind == "RayCluster":
                if (cluster.manifest.namespace, cluster.manifest.name) == (job.manifest.namespace, selected):
                    return cluster
            elif not selected and cluster.manifest is job.manifest:
                return cluster
        return None

    @cached_property
    def efa_clusters(self) -> list[Cluster]:
        return [cluster for cluster in self.clusters if cluster.over_efa]

    @cached_property
    def efa_jobs(self) -> list[Job]:
        """Jobs on a cluster whose workers have EFA interfaces."""
        return [job for job in self.jobs if (cluster := self.cluster_of(job)) and cluster.over_efa]

    @cached_property
    def pods(self) -> list[Pod]:
        pods = [group.pod for cluster in self.clusters for group in cluster.groups]
        pods += [pod for job in self.jobs if (pod := job.submitter)]
        for manifest in self.manifests:
            if manifest.kind == "Pod":
                pods.append(Pod(manifest, "spec", "Pod", manifest.body))
            elif path := POD_TEMPLATES.get(manifest.kind):
                template = below(manifest.body, path)
                count = below(manifest.body, "spec.replicas")
                pods.append(
                    Pod(manifest, f"{path}.spec", manifest.kind, template or {}, 1 if count is None else count)
                )
        return pods
