"""`eagleray logs`: a part's log from its pod, and when that is gone from where it was kept."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TextIO

from ops.aws import Aws
from ops.cluster_parts import DEVICE_PLUGINS, OPERATOR, Part, head, submitter
from ops.console import printable
from ops.context import Context
from ops.deployed_run import chosen, no_such_job, of_cluster, run_of
from ops.errors import CommandError, NothingToDoError
from ops.interrupts import interrupts
from ops.kube import Namespace, connect
from ops.log_archive import from_cloudwatch, from_storage
from ops.rank_lines import RankLines, driver_lines, lines_of_rank
from ops.status.pods import pod_state

What = Literal["driver", "submitter", "rank", "head", "operator", "plugins"]
_OF_A_JOB = ("driver", "submitter", "rank")


@dataclass(frozen=True)
class Wanted:
    """What was asked for. `rank` None with `what` rank: all. `storage`: of runs, where the cluster is gone."""

    context: Context
    what: What = "driver"
    job: str | None = None
    rank: int | None = None
    tail: int | None = None
    how: Literal["once", "follow"] = "once"
    storage: str | None = None


def run(wanted: Wanted, out: TextIO, say: Callable[[str], None], aws: Callable[[], Aws] = Aws,
        cluster: Callable[[str], Namespace] = connect) -> None:
    """Write the log to `out`; `say` is told where it comes from.

    Raises:
        NothingToDoError: if there is no such log anywhere; one line for each place that was looked in.
    """
    logs = _Logs(wanted, say, aws, cluster)
    try:
        with interrupts():
            for line in logs.lines():
                # A file or the next program gets the log as it is, a terminal nothing that it would act on.
                out.write(f"{printable(line) if out.isatty() else line}\n")
                if wanted.how == "follow":
                    out.flush()
            out.flush()
    except BrokenPipeError:  # `| head` has seen enough
        if out is sys.stdout:
            os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())


class _Logs:
    """Looks for a log in one place after the other; `_not_there` has why not, for each."""

    def __init__(self, wanted: Wanted, say: Callable[[str], None], aws: Callable[[], Aws],
                 cluster: Callable[[str], Namespace]) -> None:
        self._wanted, self._say, self._aws, self._cluster = wanted, say, aws, cluster
        self._settings = wanted.context.settings()
        self._job = wanted.job
        self._uri: str | None = None
        self._not_there: list[str] = []

    def lines(self) -> Iterator[str]:
        found = self._from_pods()
        if found is None:
            found = self._kept(self._from_cloudwatch) or self._kept(self._from_storage)
        if found is None:
            raise NothingToDoError("\n".join(self._not_there))
        return found

    def _from_pods(self) -> Iterator[str] | None:
        try:
            namespace = self._cluster(self._settings.ray.namespace)
            part = self._part(namespace)
            if part is None:
                return None
            there = namespace.within(part.namespace or namespace.name)
            pods = there.pods(part.labels)
        except CommandError as error:
            self._not_there.append(str(error))
            return None
        if not pods:
            self._not_there.append(f"no pod of the {self._wanted.what} is left in context {namespace.context}")
            return None
        return self._of_pods(there, pods)

    def _part(self, namespace: Namespace) -> Part | None:
        """Which pods; None, with the reason noted, where there is no such job."""
        fixed = {"head": head(self._settings.name), "operator": OPERATOR, "plugins": DEVICE_PLUGINS}
        if self._wanted.what in fixed:
            return fixed[self._wanted.what]
        jobs = of_cluster(namespace.list("RayJob"), self._settings.name)
        if self._job is not None and self._job not in [job["metadata"]["name"] for job in jobs]:
            self._not_there.append(no_such_job(self._job, jobs))
            return None
        raw = chosen(jobs, self._job)
        if raw is None:
            self._not_there.append(f"namespace {namespace.name} of context {namespace.context} has no RayJob; "
                                   "cdk deploy TrainingStack makes one")
            return None
        self._job = raw["metadata"]["name"]
        run = run_of(raw, namespace.config_maps())
        self._uri = run.uri if run else None
        return submitter(raw["metadata"]["name"])

    def _of_pods(self, namespace: Namespace, pods: Sequence[dict[str, Any]]) -> Iterator[str]:
        if self._wanted.what == "plugins":
            if self._wanted.how == "follow":
                raise NothingToDoError("--follow follows one pod, and plugins run on every GPU node; leave it "
                                       "out, or kubectl -n kube-system logs -f POD")
            self._say(f"from {len(pods)} pods in {namespace.name} of context {namespace.context}")
            return (f"{name} | {line}" for pod in pods for name in [pod["metadata"]["name"]]
                    for line in namespace.pod_log(name, _first_container(pod), self._wanted.tail).splitlines())
        pod = pods[-1]
        name, state = pod["metadata"]["name"], pod_state(pod)
        if pod["status"].get("phase") == "Pending":
            raise NothingToDoError(f"pod {name} has not started, so there is no log: {state.state}: {state.why}")
        self._say(f"from pod {name} in {namespace.name} of context {namespace.context}")
        return self._of_pod(namespace, name, _first_container(pod))

    def _of_pod(self, namespace: Namespace, pod: str, container: str | None) -> Iterator[str]:
        tail, whole = self._wanted.tail, self._wanted.what not in ("driver", "rank")
        if whole and self._wanted.how == "follow":
            return namespace.follow_log(pod, container, tail)
        lines = namespace.pod_log(pod, container, tail if whole else None).splitlines()
        if whole:
            return iter(lines)
        ranks = RankLines()
        so_far = self._selected(lines, ranks)
        if self._wanted.how == "once":
            return self._last(so_far, ranks)
        return self._and_then(so_far, (line for number, line in enumerate(namespace.follow_log(pod, container))
                                       if number >= len(lines)), ranks)

    def _and_then(self, so_far: Iterable[str], further: Iterator[str], ranks: RankLines) -> Iterator[str]:
        yield from deque(so_far, self._wanted.tail)
        yield from self._selected(further, ranks)

    def _selected(self, lines: Iterable[str], ranks: RankLines) -> Iterator[str]:
        if self._wanted.what == "rank":
            return lines_of_rank(lines, self._wanted.rank, ranks)
        return driver_lines(lines) if self._wanted.what == "driver" else iter(lines)

    def _last(self, selected: Iterable[str], ranks: RankLines) -> Iterator[str]:
        found = deque(selected, self._wanted.tail)
        if self._wanted.what == "rank" and not found:
            if not ranks.known:
                raise NothingToDoError("the job's log names no ranks: its workers have not started; eagleray "
                                       "status says what they wait for")
            if self._wanted.rank not in (None, *ranks.known):
                raise NothingToDoError(f"there is no rank {self._wanted.rank}; the job has ranks {ranks.known[0]} "
                                       f"to {ranks.known[-1]}")
        return iter(found)

    def _kept(self, ask: Callable[[], tuple[str, list[str]] | None]) -> Iterator[str] | None:
        try:
            found = ask()
        except CommandError as error:
            self._not_there.append(str(error))
            return None
        if found is None:
            return None
        whence, lines = found
        self._say(f"the pod is gone; from {whence}")
        return iter(lines)

    def _from_cloudwatch(self) -> tuple[str, list[str]] | None:
        name, wanted = self._settings.name, self._wanted
        if wanted.what in _OF_A_JOB and self._job is None:
            return None
        pods = {"head": f"{name}-head*", "operator": "kuberay-operator*", "plugins": "*device-plugin*"}
        where = {"operator": OPERATOR.namespace, "plugins": DEVICE_PLUGINS.namespace}
        filtered = wanted.what in ("driver", "rank")
        lines = from_cloudwatch(self._aws(), self._settings.region, name,
                                where.get(wanted.what) or self._settings.ray.namespace,
                                pods.get(wanted.what, f"{self._job}-*"), None if filtered else wanted.tail)
        ranks = RankLines()
        return "CloudWatch", list(self._last(self._selected(lines, ranks), ranks))

    def _from_storage(self) -> tuple[str, list[str]] | None:
        if self._wanted.what not in _OF_A_JOB:
            return None
        if self._uri is None and self._wanted.storage and self._job:
            self._uri = f"{self._wanted.storage.rstrip('/')}/{self._job}"
        if self._uri is None:
            self._not_there.append("where its run left results is not known; name it: --storage s3://BUCKET/runs "
                                   "--job RUN")
            return None
        return f"{self._uri}: its steps and its end, not the log itself", from_storage(self._uri, self._wanted.tail)


def _first_container(pod: dict[str, Any]) -> str | None:
    """KubeRay: container 0 is Ray; an autoscaler may be beside it."""
    containers = (pod.get("spec") or {}).get("containers") or []
    return containers[0]["name"] if containers else None
