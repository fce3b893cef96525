"""Images of Ray pods: one Ray, one Python, one NCCL for head, workers and submitter."""

from __future__ import annotations

from collections.abc import Iterator

from k8s.rules.rule import KUBERAY_RUN, NOBODY, Fault, rule
from k8s.rules.versions import version
from k8s.rules.world import World


@rule(
    "ray-version",
    reason="the operator chooses probes and features by rayVersion, not by what the image has",
    unseen=NOBODY,
    source=KUBERAY_RUN,
)
def ray_version(world: World) -> Iterator[Fault]:
    for cluster in world.clusters:
        told = cluster.spec.get("rayVersion")
        for group in cluster.groups:
            image = group.pod.first.get("image", "")
            repository, _, tag = image.rpartition(":")
            has = version(tag) if repository.rpartition("/")[2] in ("ray", "ray-ml", "ray-llm") else None
            if told and has and version(told) != has and "rayproject/" in repository:
                yield group.manifest.fault(
                    f"{group.pod.path}.containers[0].image",
                    f"has Ray {'.'.join(map(str, has))}, rayVersion says {told}",
                    "use the same",
                )


@rule(
    "ray-image",
    reason="head and workers must have the same Ray and Python, or they refuse each other",
    unseen=NOBODY,
    source="Ray documentation, cluster FAQ",
)
def images(world: World) -> Iterator[Fault]:
    for cluster in world.clusters:
        head = cluster.head.pod.first.get("image", "")
        pods = [group.pod for group in cluster.workers]
        pods += [
            pod
            for job in world.jobs
            if world.cluster_of(job) is cluster and (pod := job.submitter) and cluster.over_efa
        ]
        for pod in pods:
            image = pod.first.get("image", "")
            if image and head and image != head and (cluster.over_efa or not _alike(head, image)):
                yield pod.manifest.fault(
                    f"{pod.path}.containers[0].image", f"{image} is not the head's {head}", "use one image"
                )


def _alike(one: str, other: str) -> bool:
    """Whether two images are builds of one Ray, such as `2.58.0-py311` and `2.58.0-py311-gpu`, or say nothing."""
    if one.removesuffix("-gpu") == other.removesuffix("-gpu"):
        return True
    tags = [version(image.rpartition(":")[2]) for image in (one, other)]
    pythons = [image.rpartition("-py")[2][:3] if "-py" in image else None for image in (one, other)]
    same = all(a == b or a is None or b is None for a, b in (tags, pythons))
    return same and (tags[0] is not None or "rayproject/" not in one + other)
