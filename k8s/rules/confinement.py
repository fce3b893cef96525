"""What a container that runs training may ask of the kernel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from k8s.rules.rule import NOBODY, Fault, rule
from k8s.rules.world import World


@rule(
    "ray-confinement",
    reason="training runs code of others, as root in most images: without capabilities, and with the runtime's "
    "filter of system calls, that root is worth little",
    unseen=NOBODY,
    source="Kubernetes, Pod Security Standards (restricted)",
)
def confinement(world: World) -> Iterator[Fault]:
    pods = [group.pod for cluster in world.efa_clusters for group in cluster.groups]
    pods += [pod for job in world.efa_jobs if (pod := job.submitter)]
    for pod in pods:
        of_pod = _profile(pod.spec)
        for path, container in pod.containers:
            context = container.get("securityContext") or {}
            if "ALL" not in ((context.get("capabilities") or {}).get("drop") or []):
                yield pod.manifest.fault(
                    f"{path}.securityContext.capabilities.drop", "leaves root its capabilities", "set it to [ALL]"
                )
            if (_profile(container) or of_pod) not in ("RuntimeDefault", "Localhost"):
                yield pod.manifest.fault(
                    f"{pod.path}.securityContext.seccompProfile.type",
                    "lets every system call through",
                    "set it to RuntimeDefault",
                )


def _profile(spec: dict[str, Any]) -> str | None:
    return ((spec.get("securityContext") or {}).get("seccompProfile") or {}).get("type")
