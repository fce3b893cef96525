"""What a training is in Kubernetes: service account, Ray cluster, code bundle, job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import cdk8s
import cdk8s_plus_28 as kplus

from k8s.bundle import BundleConfigMap, CodeBundle
from k8s.network_policies import SERVICE_RANGES, network_policies
from k8s.ray_cluster import RayCluster, RayPods, WorkerGroup
from k8s.ray_job import JobSpec, RayJob


@dataclass(frozen=True)
class TrainingObjects:
    """The objects of a training, in the order in which they are applied."""

    service_account: dict[str, Any]
    network_policies: list[dict[str, Any]]
    ray_cluster: dict[str, Any]
    code: list[dict[str, Any]]
    job: dict[str, Any]

    def in_order(self) -> list[dict[str, Any]]:
        """All of them."""
        return [self.service_account, *self.network_policies, self.ray_cluster, *self.code, self.job]


def training_objects(*, namespace: str, cluster_name: str, pods: RayPods, workers: WorkerGroup,
                     bundle: CodeBundle, job: JobSpec, vpc_range: str,
                     scraper: Mapping[str, Any] | None = None) -> TrainingObjects:
    """The objects in `namespace`: a RayCluster `cluster_name` of `pods` and `workers`, and `job` for it.

    `vpc_range`: addresses of the VPC, in which the Kubernetes API is; `scraper`: who may read the workers' metrics.
    """
    chart = cdk8s.Chart(cdk8s.App(), "training")
    # The one account with AWS permissions; it has none in Kubernetes.
    kplus.ServiceAccount(chart, "account", automount_token=False, metadata=cdk8s.ApiObjectMetadata(
        name=pods.service_account, namespace=namespace))
    network_policies(chart, namespace=namespace, cluster=cluster_name, api_ranges=(vpc_range, *SERVICE_RANGES),
                     scraper=scraper)
    RayCluster(chart, "cluster", name=cluster_name, namespace=namespace, pods=pods, workers=workers)
    for part in bundle.parts:
        BundleConfigMap(chart, part.name, namespace=namespace, part=part)
    RayJob(chart, "job", namespace=namespace, job=job)
    account, *others, ray_job = chart.to_json()
    of_kind = {kind: [one for one in others if one["kind"] == kind]
               for kind in ("NetworkPolicy", "RayCluster", "ConfigMap")}
    (cluster,) = of_kind["RayCluster"]
    return TrainingObjects(account, of_kind["NetworkPolicy"], cluster, of_kind["ConfigMap"], ray_job)
