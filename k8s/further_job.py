"""A job beside the deployed one, on the same standing Ray cluster."""

from __future__ import annotations

from typing import Any

import cdk8s

from k8s.bundle import BundleConfigMap, CodeBundle
from k8s.ray_job import JobSpec, RayJob


def further_job_objects(*, namespace: str, bundle: CodeBundle, job: JobSpec) -> list[dict[str, Any]]:
    """The ConfigMaps of `bundle`, and last the RayJob `job`."""
    chart = cdk8s.Chart(cdk8s.App(), "job")
    for part in bundle.parts:
        BundleConfigMap(chart, part.name, namespace=namespace, part=part)
    RayJob(chart, "job", namespace=namespace, job=job)
    return chart.to_json()
