"""Submit a job through Ray's job API and follow it to its end, as KubeRay's submitter pod does."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ops.errors import CommandError
from ops.submitted_job import SubmittedJob

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

_AGENT_SECONDS = 60


class JobFailedError(CommandError):
    """The job ended without success. `log` is what it printed."""

    def __init__(self, reason: str, log: str) -> None:
        super().__init__(reason)
        self.log = log


def connect(dashboard: str, token: str) -> JobSubmissionClient:
    """A client of the job API, which `token` opens; never through a proxy."""
    for name in ("NO_PROXY", "no_proxy"):
        os.environ[name] = ",".join(filter(None, [os.environ.get(name), "127.0.0.1"]))
    from ray.job_submission import JobSubmissionClient

    for name in ("ray.dashboard.modules.dashboard_sdk", "ray._private.runtime_env.packaging"):
        logging.getLogger(name).setLevel(logging.WARNING)  # they report each upload
    # Not by environment, as KubeRay's submitter has it: Ray reads that once a process.
    return JobSubmissionClient(dashboard, headers={"Authorization": f"Bearer {token}"})


def submit(client: JobSubmissionClient, job: SubmittedJob) -> str:
    """`ray job submit --runtime-env-json … --entrypoint-num-cpus … -- entrypoint`. Returns the submission id.

    The head's job agent comes up a moment after the nodes: until then the API answers with an error.
    """
    deadline = time.monotonic() + _AGENT_SECONDS
    while True:
        try:
            return client.submit_job(entrypoint=job.entrypoint, submission_id=f"{job.name}-rehearsal",
                                     runtime_env=dict(job.runtime_env), entrypoint_num_cpus=job.entrypoint_cpus)
        except RuntimeError as error:
            if "agent" not in str(error).lower() or time.monotonic() > deadline:
                raise CommandError(f"Ray's job API did not take the job: {error}") from None
        time.sleep(0.5)


@dataclass
class Follower:
    """Watches a running job: new lines of its metrics, and how it ends."""

    client: JobSubmissionClient
    submission_id: str
    metrics: Path
    shown: int = field(default=0, init=False)

    def steps(self, seconds: float, check: Callable[[], None]) -> Iterator[list[dict[str, Any]]]:
        """Metrics rows that are new, about twice a second (often none), until the job has succeeded.

        Raises:
            JobFailedError: if it failed, was stopped, or is not done after `seconds` (then it is stopped).
            CommandError: what `check` raises, which is called each time.
        """
        deadline = time.monotonic() + seconds
        while True:
            check()
            status = self.client.get_job_status(self.submission_id)
            yield self._new_rows()
            if status.is_terminal():
                break
            if time.monotonic() > deadline:
                raise JobFailedError(f"not done after {seconds:.0f} s (--minutes)", self.log())
            time.sleep(0.4)
        if status != "SUCCEEDED":
            message = self.client.get_job_info(self.submission_id).message or f"the job ended as {status}"
            raise JobFailedError(message.strip(), self.log())

    def log(self) -> str:
        """What the job has printed so far."""
        try:
            return self.client.get_job_logs(self.submission_id)
        except (RuntimeError, OSError) as error:  # the head may be what failed
            return f"(the job's log cannot be read: {error})"

    def _new_rows(self) -> list[dict[str, Any]]:
        """Whole lines only: the trainer may be in the middle of one. After a restart there are fewer."""
        try:
            whole = self.metrics.read_bytes().rpartition(b"\n")[0]
        except FileNotFoundError:
            return []
        rows = [json.loads(line) for line in whole.splitlines()]
        first, self.shown = min(self.shown, len(rows)), len(rows)
        return rows[first:]
