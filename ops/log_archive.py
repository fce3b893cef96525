"""Logs of pods that are gone: in CloudWatch, where the cluster sends them, else what the run left in storage."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator

from ops import run_storage
from ops.aws import FAILURES, Aws, error_code, trouble
from ops.errors import CommandError, NothingToDoError

_MOST_EVENTS = 200_000


def log_group(cluster: str) -> str:
    """Where the CloudWatch Observability add-on writes what containers print."""
    return f"/aws/containerinsights/{cluster}/application"


def from_cloudwatch(aws: Aws, region: str, cluster: str, namespace: str, pods: str, tail: int | None) -> list[str]:
    """The lines, or the last `tail` of them, of pods whose name matches `pods` (`eagleray-head*`).

    Raises:
        NothingToDoError: if there are none, or CloudWatch may not be asked; says which.
    """
    group = log_group(cluster)
    pattern = f'{{ $.kubernetes.namespace_name = "{namespace}" && $.kubernetes.pod_name = "{pods}" }}'
    lines: deque[str] = deque(maxlen=tail)
    try:
        pages = aws.client("logs", region).get_paginator("filter_log_events").paginate(
            logGroupName=group, filterPattern=pattern, PaginationConfig={"MaxItems": _MOST_EVENTS})
        for page in pages:
            lines.extend(_line(event["message"]) for event in page["events"])
    except FAILURES as error:
        if error_code(error) == "ResourceNotFoundException":
            raise NothingToDoError(f"CloudWatch has no log group {group}: the cluster sent it no logs") from None
        raise NothingToDoError(f"CloudWatch: {trouble(error)}") from None
    if not lines:
        raise NothingToDoError(f"CloudWatch: log group {group} has nothing of pods {pods}")
    return list(lines)


def from_storage(uri: str, tail: int | None) -> list[str]:
    """A run's steps, and how it ended, as its folder tells them: less than its log, and better than nothing.

    Raises:
        CommandError: if there are none, or the folder may not be read.
    """
    metrics, summary = run_storage.read(uri, "metrics.jsonl"), run_storage.read(uri, "summary.json")
    lines = [_step(row) for row in _rows(metrics or b"")]
    if summary is not None:
        told = json.loads(summary)
        lines.append(f"run {told.get('name')} {told.get('status')} {told.get('reason') or ''}".rstrip())
    if not lines:
        raise CommandError(f"{uri} holds no steps")
    return lines[-tail:] if tail else lines


def _rows(metrics: bytes) -> Iterator[dict[str, object]]:
    for line in metrics.decode(errors="replace").splitlines():
        try:
            yield json.loads(line)
        except ValueError:  # cut short by a crash
            return


def _step(row: dict[str, object]) -> str:
    numbers = [f"{key} {row[key]:.6g}" for key in ("loss", "grad_norm", "tokens_per_second", "step_seconds")
               if isinstance(row.get(key), (int, float))]
    return "  ".join([f"step {row.get('step')}", *numbers, str(row.get("reason") or "")]).rstrip()


def _line(message: str) -> str:
    """What the container printed, out of the agent's JSON."""
    try:
        return str(json.loads(message)["log"]).rstrip("\n")
    except (ValueError, KeyError, TypeError):
        return message.rstrip("\n")
