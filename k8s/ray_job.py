"""The training job: a RayJob that submits the code bundle to the standing Ray cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml
from constructs import Construct

from k8s.bundle import CodeBundle
from k8s.deadlines import ENDS_BY, Deadlines
from k8s.kubernetes_object import CONFINED, CONFINED_POD, KubernetesObject, env
from k8s.ray_cluster import NO_GPU
from training.config import TIME_LIMIT, TURN_TIMEOUT, digest

# Not below the image's WORKDIR /workspace, which would hide what the image has there.
CODE_PATH = "/eagleray/code"
ENTRYPOINT = "python -m training.train train.json"
SUBMITTER_PODS = {"app.kubernetes.io/component": "submitter"}
"""A label of every submitter's pod, by which the network policies know it."""

# Seconds before its deadline that a job ends itself: the deadline counts from when the RayJob is made, and the job
# knows only when its driver has started.
_LAST_WORDS = 180

# KubeRay fails a RayJob at its deadline but leaves the Ray job running on a cluster it did not make (KubeRay
# 1.7.0, rayjob_controller.go). The submitter gets the same deadline, and stops the job when it has to go.
_STOP_JOB = ('ray job stop --no-wait --address "http://${RAY_DASHBOARD_ADDRESS#http://}" '
             '"$RAY_JOB_SUBMISSION_ID"')


@dataclass(frozen=True)
class JobSpec:
    """A RayJob's `spec`, and what it runs on, and the name that follows from both."""

    prefix: str
    spec: Mapping[str, Any]
    cluster_hash: str
    annotations: Mapping[str, str]

    @property
    def name(self) -> str:
        """`<prefix>-<hash>`. KubeRay ignores edits of a RayJob, so another job needs another name.

        A changed Ray cluster is made anew and takes its job along: the job gets another name too, and the
        new one goes on from the checkpoint.
        """
        return f"{self.prefix}-{digest([dict(self.spec), self.cluster_hash])}"


class RayJob(KubernetesObject):
    """A RayJob; see `job_spec`."""

    def __init__(self, scope: Construct, construct_id: str, *, namespace: str, job: JobSpec) -> None:
        super().__init__(scope, construct_id, api_version="ray.io/v1", kind="RayJob",
                         name=job.name, namespace=namespace, annotations=job.annotations, spec=dict(job.spec))


def job_spec(*, prefix: str, cluster: str, cluster_hash: str, image: str, bundle: CodeBundle,
             deadlines: Deadlines) -> JobSpec:
    """The job that runs `bundle` on the RayCluster `cluster`, submitted from a pod with `image`.

    `cluster_hash` stands for what that cluster is made of.

    One attempt only: the trainer recovers from failures inside the Ray cluster, with its checkpoints at
    hand, and a second submitter could only submit the same job again.
    """
    return JobSpec(prefix, {
        "submissionMode": "K8sJobMode",
        "clusterSelector": {"ray.io/cluster": cluster},
        "entrypoint": ENTRYPOINT,
        # The driver runs on the head, which has no CPUs to hand out.
        "entrypointNumCpus": 0,
        "runtimeEnvYAML": _runtime_env(deadlines),
        "preRunningDeadlineSeconds": deadlines.start + deadlines.in_line,
        "activeDeadlineSeconds": deadlines.run + deadlines.in_line,
        "submitterConfig": {"backoffLimit": 0},
        "submitterPodTemplate": {"metadata": {"labels": SUBMITTER_PODS},
                                 "spec": _submitter(image, bundle, deadlines)},
    }, cluster_hash, {ENDS_BY: deadlines.why})


def _runtime_env(deadlines: Deadlines) -> str:
    """The job's runtime_env as YAML. The operator pastes it into bash between double quotes: no $ and no `."""
    return yaml.safe_dump({
        "working_dir": CODE_PATH,
        "excludes": ["..*"],  # such a volume holds every file again in ..data and ..2026_…
        "env_vars": {
            "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": str(deadlines.start),
            # A job that replaces another waits for it too: CloudFormation makes the new one first and deletes the
            # old one at the end.
            TURN_TIMEOUT: str(deadlines.start + deadlines.in_line),
            # What waits in line has a later deadline, and yet may not take longer, or cost more. And what ends
            # itself leaves a summary, which what is ended from outside cannot.
            TIME_LIMIT: str(deadlines.run - min(_LAST_WORDS, deadlines.run // 10)),
            "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
            "RAY_DEDUP_LOGS": "0",
            "RAY_COLOR_PREFIX": "0",
            # A rank whose peer died gives up, and leaves a trace of the collective it hung in.
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
            "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
            "TORCH_FR_BUFFER_SIZE": "2000",
        },
    }, sort_keys=False)


def _submitter(image: str, bundle: CodeBundle, deadlines: Deadlines) -> dict[str, Any]:
    """The pod that uploads the code, submits the job and follows its log; only it mounts the bundle."""
    return {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "securityContext": CONFINED_POD,
        "activeDeadlineSeconds": deadlines.run + deadlines.in_line,
        "terminationGracePeriodSeconds": 60,
        "containers": [{
            "name": "ray-job-submitter",
            "image": image,
            "imagePullPolicy": "IfNotPresent",
            "env": env(NO_GPU),
            "resources": {
                "requests": {"cpu": "250m", "memory": "512Mi"},
                "limits": {"cpu": "1", "memory": "1Gi"},
            },
            "securityContext": CONFINED,
            # The end of the log, where a failed training says why, becomes part of the pod's status.
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "lifecycle": {"preStop": {"exec": {"command": ["/bin/bash", "-c", _STOP_JOB]}}},
            "volumeMounts": [{"name": "code", "mountPath": CODE_PATH, "readOnly": True}],
        }],
        "volumes": [{"name": "code", **bundle.volume}],
    }
