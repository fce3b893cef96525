"""Ray's token: asked for where training runs, and written down nowhere."""

from __future__ import annotations

from collections.abc import Iterator

from k8s.rules.efa import runtime_env
from k8s.rules.rule import NOBODY, Fault, rule
from k8s.rules.versions import older, version
from k8s.rules.world import World, variables

_MODE, _TOKEN = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"
_FIRST = "2.52.0"


@rule(
    "ray-token",
    reason="without a token Ray runs the code of whoever reaches one of its ports; one that is written in a "
    "manifest is known to all who may read that",
    unseen=NOBODY,
    source="Ray documentation, token authentication (off by default up to 2.58); KubeRay 1.7.0, pod.go",
)
def ray_token(world: World) -> Iterator[Fault]:
    for cluster in world.efa_clusters:
        told = cluster.spec.get("rayVersion")
        known = version(told) is None or not older(told, _FIRST)
        if known and (cluster.spec.get("authOptions") or {}).get("mode") != "token":
            yield cluster.manifest.fault(
                f"{cluster.path}.authOptions.mode", "is not token: Ray asks nobody for one", "set it to token"
            )
    for pod in world.pods:
        for path, container in pod.containers:
            yield from (
                pod.manifest.fault(f"{path}.env.{name}", what, mend)
                for name, what, mend in _written(variables(container))
            )
    for job in world.jobs:
        for name, what, mend in _written(runtime_env(job).get("env_vars") or {}):
            yield job.manifest.fault(f"{job.path}.runtimeEnvYAML.env_vars.{name}", what, mend)


def _written(env: dict[str, str]) -> Iterator[tuple[str, str, str]]:
    """Variable, what is wrong with it, and what would work."""
    if env.get(_TOKEN):
        yield _TOKEN, "holds the token itself", "take it by secretKeyRef, or leave it to authOptions"
    if env.get(_MODE, "token") != "token":
        # KubeRay leaves a variable alone that is there.
        yield _MODE, f"is {env[_MODE]!r}: the pod takes and sends no token", "leave it out, and use authOptions"
