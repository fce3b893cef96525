"""What a cluster and its stacks tell right now, as the texts that diagnose reads, and as a file to send."""

from __future__ import annotations

import io
import json
import tarfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ops.aws import FAILURES, Aws, CredentialsError
from ops.diagnose.evidence import Document
from ops.diagnose.redaction import Redactor
from ops.errors import CommandError, NothingToDoError
from ops.kube import Namespace, UnreachableError
from ops.preflight.stack_checks import STACKS

_LOG_LINES = 5000
"""Last lines of each container's log."""
_SYSTEM = "kube-system"
NOT_ASKED = "not-collected.txt"
"""The part that names what could not be asked; left out where everything was."""


def collect(cluster: Namespace, stacks: str, region: str, aws: Callable[[], Aws] = Aws) -> dict[str, str]:
    """Texts by name: RayJobs, RayClusters, pods, nodes, events, logs, stack events.

    Args:
        cluster: the jobs' namespace; kube-system is looked at too.
        stacks: prefix of the CloudFormation stacks.
        region: of the stacks.
        aws: makes the clients.

    Raises:
        KubeError, NothingToDoError: if the cluster cannot be asked at all. A part that fails is named in NOT_ASKED.
    """
    texts: dict[str, str] = {}
    refused: list[str] = []

    def part(name: str, ask: Callable[[], Any]) -> Any:
        try:
            found = ask()
        except UnreachableError:
            raise
        except CommandError as error:
            refused.append(f"{name}: {error}")
            return None
        texts[name] = found if isinstance(found, str) else json.dumps(found, indent=1, default=str)
        return found

    part("nodes.json", lambda: _as("Node", cluster.nodes()))
    for kind in ("RayJob", "RayCluster"):
        part(f"{kind.lower()}s.json", lambda kind=kind: _as(kind, cluster.list(kind)))
    for place in (cluster, cluster.within(_SYSTEM)):
        part(f"events-{place.name}.json", lambda place=place: _as("Event", place.events()))
        pods = part(f"pods-{place.name}.json", lambda place=place: _as("Pod", place.pods())) or []
        for pod in pods if place is cluster else _plugins(pods):
            name = pod["metadata"]["name"]
            for container in pod.get("spec", {}).get("containers", []):
                part(f"logs/{name}/{container['name']}.log", lambda place=place, name=name, container=container:
                     place.pod_log(name, container["name"], _LOG_LINES))
    for stack in STACKS:
        part(f"stack-{stack}.json", lambda stack=stack: _stack_events(aws, f"{stacks}-{stack}", region))
    if refused:
        texts[NOT_ASKED] = "\n".join(f"# {line}" for line in refused) + "\n"
    return texts


def documents(texts: Mapping[str, str]) -> list[Document]:
    """The texts as evidence; what could not be asked is none."""
    return [Document(name, text.splitlines()) for name, text in texts.items() if name != NOT_ASKED]


def write_bundle(texts: Mapping[str, str], target: Path, redactor: Redactor) -> None:
    """A .tar.gz of the texts without secrets, and of what was taken out (`redacted.txt`).

    Raises:
        NothingToDoError: if the file cannot be written.
    """
    clean = {redactor.clean(name): redactor.clean(text) for name, text in texts.items()}
    clean["redacted.txt"] = f"# taken out: {redactor.told()}\n"
    try:
        with tarfile.open(target, "w:gz") as archive:
            for name, text in clean.items():
                data = text.encode()
                entry = tarfile.TarInfo(f"eagleray-bundle/{name}")
                entry.size, entry.mtime = len(data), int(time.time())
                archive.addfile(entry, io.BytesIO(data))
    except OSError as error:
        raise NothingToDoError(f"--bundle {target}: {error.strerror or error}") from None


def _as(kind: str, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Items of a list, which the API server sends without their kind."""
    return [{"kind": kind, **item} for item in items]


def _plugins(pods: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [pod for pod in pods if any(part in pod["metadata"]["name"] for part in ("device-plugin", "autoscaler"))]


def _stack_events(aws: Callable[[], Aws], stack: str, region: str) -> dict[str, Any]:
    try:
        answer = aws().client("cloudformation", region).describe_stack_events(StackName=stack)
    except CredentialsError:
        raise
    except FAILURES as error:
        raise CommandError(f"stack {stack}: {' '.join(str(error).split())}") from None
    return {"StackEvents": list(reversed(answer["StackEvents"][:100]))}
