"""What a pod does, and why it does not run, in one line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_KILLED = 137
"""Exit code after SIGKILL: where Kubernetes names no reason, most often memory."""


@dataclass(frozen=True)
class PodState:
    """`state` is a word such as Running, Pending or CrashLoopBackOff; `why` is empty for a pod that is well."""

    name: str
    state: str
    why: str = ""
    node: str = ""

    @property
    def is_well(self) -> bool:
        """Whether it runs, or did what it was for."""
        return self.state in ("Running", "Succeeded") and not self.why


def pod_state(pod: Mapping[str, Any]) -> PodState:
    """The state of a pod as the API server writes it."""
    name, status = pod["metadata"]["name"], pod.get("status") or {}
    node = (pod.get("spec") or {}).get("nodeName") or ""
    state, why = _state(pod, status)
    return PodState(name, state, " ".join(why.split()), node)


def _state(pod: Mapping[str, Any], status: Mapping[str, Any]) -> tuple[str, str]:
    phase = status.get("phase") or "Unknown"
    if pod["metadata"].get("deletionTimestamp"):
        held = " and held by a finalizer" if pod["metadata"].get("finalizers") else ""
        return "Terminating", f"asked to end{held}"
    if phase == "Succeeded":
        return phase, ""
    if phase == "Failed" and status.get("reason"):  # Evicted, NodeLost
        return str(status["reason"]), str(status.get("message") or "")
    for container in _containers(status):
        if said := _trouble(container):
            return said
    if phase == "Pending":
        return phase, _unscheduled(status) or "its containers are being made"
    if phase == "Running" and not _ready(status):
        return phase, _restarts(status) or "not ready yet"
    return phase, _restarts(status)


def _containers(status: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from status.get("initContainerStatuses") or []
    yield from status.get("containerStatuses") or []


def _trouble(container: Mapping[str, Any]) -> tuple[str, str] | None:
    """Why a container neither runs nor is about to."""
    state = container.get("state") or {}
    waiting, ended = state.get("waiting"), state.get("terminated")
    if waiting and waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
        last = (container.get("lastState") or {}).get("terminated")
        parts = [waiting.get("message") or "", f"before that {_end(last)}" if last else ""]
        return waiting["reason"], "; ".join(part for part in parts if part) or container["name"]
    if ended and ended.get("exitCode"):
        return ended.get("reason") or "Error", f"container {container['name']}: {_end(ended)}"
    return None


def _end(ended: Mapping[str, Any]) -> str:
    """`OOMKilled, exit code 137`; of a failed one also the last words that Kubernetes kept."""
    code, reason = ended.get("exitCode"), ended.get("reason") or "Error"
    hint = " (killed; often for memory)" if code == _KILLED and reason == "Error" else ""
    words = " ".join(str(ended.get("message") or "").split())
    return f"{reason}, exit code {code}{hint}" + (f": …{words[-200:]}" if words else "")


def _unscheduled(status: Mapping[str, Any]) -> str:
    """The scheduler's own words."""
    for condition in status.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return condition.get("message") or condition.get("reason") or ""
    return ""


def _ready(status: Mapping[str, Any]) -> bool:
    return all(c.get("ready") for c in status.get("containerStatuses") or [])


def _restarts(status: Mapping[str, Any]) -> str:
    told = [f"container {c['name']} restarted {c['restartCount']} x, last {_end(last)}"
            for c in _containers(status)
            if c.get("restartCount") and (last := (c.get("lastState") or {}).get("terminated"))]
    return "; ".join(told)
