"""KubeRay, Ray's own processes and Ray Train: why a job did not start, or ended."""

from __future__ import annotations

import re

from ops.diagnose.evidence import Evidence
from ops.diagnose.finding import INFERRED, LIKELY, SYMPTOM, Finding, Signature

_SUBMISSION = re.compile(r"SubmissionFailed|Job submission has failed|BackoffLimitExceeded|reached the specified "
                         r"backoff limit", re.IGNORECASE)
_DASHBOARD = re.compile(r"Failed to connect to Ray at address|ConnectionError[^\n]*:8265|"
                        r"8265[^\n]*Max retries exceeded|:8265[^\n]*(?:refused|timed out)", re.IGNORECASE)
_HEAD_NOT_READY = re.compile(r"unready status: \[ray-head\]|HeadPod(?:NotReady|NotFound)|head pod is not "
                             r"ready", re.I)
_NO_GROUP = re.compile(r"worker group (?:startup|start) timed out|infeasible resource request|cannot be scheduled "
                       r"right now|No available node types can fulfill|WorkerGroupStartupTimeout|"
                       r"Insufficient cluster resources[^\n]*worker", re.IGNORECASE)
_GROUP_SIZE = re.compile(r"(?:worker group of size|waiting for) (?P<size>\d+)", re.IGNORECASE)


def findings(evidence: Evidence) -> list[Finding]:
    """Ray."""
    own = [*_submitter(evidence), *_infeasible(evidence), *_failed_job(evidence)]
    return [*own, *(found for signature in SIGNATURES for found in signature.findings(evidence))]


def _submitter(evidence: Evidence) -> list[Finding]:
    submission = evidence.grep(("submission", "backoff"), _SUBMISSION)
    dashboard = evidence.grep(("8265", "connect to ray"), _DASHBOARD)
    head = evidence.grep(("head",), _HEAD_NOT_READY)
    lines = [hit.line for hit in submission + head + dashboard]
    if dashboard and (submission or head):
        return [Finding(
            "ray/submitter-no-head", "The submitter used up its attempts (backoff limit) because the Ray head was "
                                     "not "
            "ready yet and its dashboard at 8265 did not answer; the entrypoint never ran.",
            "Find out why the head container starts slowly (`kubectl describe pod`: image pull, readiness probe, "
            "CPU and memory), and raise spec.submitterConfig.backoffLimit; newer KubeRay submits only once "
            "HeadPodReady is true.",
            lines, INFERRED)]
    if submission and not evidence.has(("traceback", "failed:"), r"Traceback|failed: "):
        return [Finding(
            "symptom/submission", "The submitter of the RayJob used up its attempts, and its own log is not here.",
            "Collect the submitter's log (`kubectl logs job/NAME`), the head pod's description and the RayJob's "
            "status.",
            lines, SYMPTOM)]
    return []


def _infeasible(evidence: Evidence) -> list[Finding]:
    hits = evidence.grep(("worker group", "infeasible", "scheduled right now", "node types", "insufficient "
                                                                                             "cluster"), _NO_GROUP)
    demands = evidence.grep("pending placement group", r"\{(?P<want>[^}]*'GPU'[^}]*)\} \* (?P<count>\d+)")
    if not hits and not demands:
        return []
    have = evidence.grep(" gpu", r"[\d.]+/(?P<gpus>\d+)(?:\.0)? GPU")
    replicas = evidence.grep("", r"^\s*(?P<now>\d+) (?P<most>\d+)\s*$") if evidence.has(
        "maxreplicas", r"maxReplicas", notes=True) else []
    pending = evidence.has("pending nodes", r"\(no pending nodes\)")
    sizes = [hit.match["size"] for hit in evidence.grep(("worker group of size", "waiting for"), _GROUP_SIZE)]
    lines = [hit.line for hit in hits + demands + have + replicas]
    size = sizes[0] if sizes else (demands[0].match["count"] if demands else "")
    if not have or (size and int(size) <= int(have[0].match["gpus"])):
        return [Finding(
            "symptom/worker-group", f"The worker group{f' of {size}' if size else ''} did not start in its time, "
                                    "and "
            "nothing here says why its nodes or resources are missing.",
            "Collect `ray status`, `kubectl get pods -o wide`, events and the RayCluster's replicas and "
            "maxReplicas.",
            lines, SYMPTOM)]
    fixed = (" with replicas and maxReplicas {now} and {most}".format(**replicas[0].match.groupdict())
             if replicas else "")
    return [Finding(
        "ray/infeasible", f"ScalingConfig asks for {size or 'more'} GPU workers than the RayCluster has: "
        f"{have[0].match['gpus']} GPUs{fixed}" + (", and no node is pending" if pending else "")
        + ", so the placement group can never be met and Ray Train retries for ever.",
        "Raise replicas (and maxReplicas) of the worker group, or lower num_workers in ScalingConfig to the GPUs "
        "that there are; Eagle Ray derives both from gpu.nodes. Set controller_failure_limit, so that such a job "
        "ends.",
        lines, INFERRED)]


def _failed_job(evidence: Evidence) -> list[Finding]:
    hits = evidence.grep(("failed", "appfailed"),
                         r"jobDeploymentStatus\W+Failed|AppFailed|jobStatus\W+FAILED|Job '?\S+'? failed|"
                         r"entrypoint command failed")
    return [Finding(
        "symptom/job-failed", "The RayJob failed, and nothing here says why.",
        "Collect the driver's log (`kubectl logs job/NAME`), the workers' logs of all ranks and the events of the "
        "namespace.",
        [hit.line for hit in hits], SYMPTOM)] if hits else []


SIGNATURES = (
    Signature(
        "ray/validation", ("is invalid", "validationfailed"),
        r"(?:RayJob|RayCluster|RayService)[^\n]* (?:spec|metadata)?[^\n]*is invalid:? (?P<why>[^\n\"']{5,240})|"
        r"reason\W+ValidationFailed|jobDeploymentStatus\W+ValidationFailed",
        "KubeRay refuses the spec (ValidationFailed): {why}.",
        "Mend that field, delete the object and make it anew: a refused RayJob is not looked at again. `eagleray "
        "check` finds such faults before.", default={"why": "see the operator's message"}),
    Signature(
        "ray/deadline-before-running", ("prerunningdeadline",), r"PreRunningDeadline\w*",
        "The RayJob did not come to run within preRunningDeadlineSeconds (ray.start_minutes): its pods were "
        "Pending or their image was still pulled.",
        "Look at the pods' events for what they waited for (GPU capacity, image, node); raise ray.start_minutes "
        "where nodes only take long.", confidence=LIKELY),
    Signature(
        "ray/deadline", ("deadlineexceeded", "activedeadline"), r"(?<!PreRunning)\bDeadlineExceeded\b|"
                                                                r"activeDeadlineSeconds[^\n]*exceed",
        "The RayJob ran longer than activeDeadlineSeconds (ray.run_hours, or all that ray.max_dollars pays "
        "for) and was ended.",
        "Raise ray.run_hours or ray.max_dollars, or find why it took so long: the last step in its log shows "
        "whether it went on or hung.",
        unless=r"context deadline|grpc|StatusCode", confidence=LIKELY),
    Signature(
        "ray/deadline-of-its-own", ("ended after",),
        r"ended after (?P<hours>[\d.]+) hours: those of ray\.run_hours",
        "The job ended itself after {hours} hours, before its deadline: those of ray.run_hours, or all that "
        "ray.max_dollars pays for.",
        "Raise ray.run_hours or ray.max_dollars and submit it again: it goes on from its checkpoint. Where its "
        "last step is old, it hung: look at its log."),
    Signature(
        "ray/no-turn", ("its turn did not come",), r"its turn did not come within (?P<seconds>\d+)\S* s: "
                                                   r"(?P<other>\S+) has the GPUs",
        "The job waited {seconds} s for the GPUs, which {other} has: one job trains at a time.",
        "Submit it again with a longer wait (eagleray run --queue HOURS), or end {other} first."),
    Signature(
        "ray/upgrade-strategy", ("upgradestrategy",), r"upgradeStrategy cannot be set[^\n]*",
        "upgradeStrategy is set in a RayJob's cluster, which KubeRay does not take: the RayJob stays Initializing.",
        "Take upgradeStrategy out of rayClusterSpec."),
    Signature(
        "ray/memory-monitor", ("running low on memory", "memory monitor", "outofmemoryerror"),
        r"(?:killed|terminated) due to the node running low on memory|ray\.exceptions\.OutOfMemoryError|"
        r"Workers? killed due to memory pressure",
        "Ray's memory monitor killed a worker because its node ran low on host memory.",
        "Use less host memory (data workers, object store, staging of checkpoints) or raise "
        "gpu.worker_memory_gib; `ray memory` and the line's list of processes show who holds it.",
        unless=r"CUDA|torch\."),
    Signature(
        "ray/gcs-lost", ("gcs",),
        r"(?:Failed to connect to GCS|GCS (?:server )?(?:is|may have been) (?:killed|down|unavailable)|lost "
        r"connection to (?:the )?GCS|GCS_SERVER_DIED|gcs_rpc_client[^\n]*(?:Failed|timed? ?out))",
        "Workers lost the Ray head (GCS): the head pod ended, was restarted or is not reachable at 6379.",
        "See the head pod's Last State and events (memory, eviction, its node) and NetworkPolicies; a lost head "
        "ends the job.", confidence=LIKELY),
    Signature(
        "ray/gcs-unreachable", ("waiting for gcs", "gcs address", "gcs to be ready"),
        r"[Tt]imed out while waiting for (?:the )?GCS|(?:[2-9]\d\d|\d{4,}) seconds elapsed: Waiting for GCS",
        "The worker's init container waits for the Ray head's GCS (port 6379) and does not reach it: the head is "
        "not up, or a NetworkPolicy or a DNS failure keeps the two apart.",
        "See whether the head is Ready (`kubectl get pods`), that its service resolves, and that NetworkPolicies "
        "let workers and head reach each other on all ports (and port 53).", confidence=LIKELY),
    Signature(
        "ray/version-mismatch", ("version mismatch",),
        r"Version mismatch[^\n]*(?:Ray|Python)|(?:Ray|Python)[^\n]*version mismatch|cluster was started with",
        "Head, workers and submitter run different versions of Ray or Python.",
        "Use one image for all of them (ray.image) and set ray.version to its Ray."),
    Signature(
        "ray/runtime-env", ("runtime_env", "runtime env", "runtimeenv"),
        r"RuntimeEnvSetupError|[Ff]ailed to (?:set ?up|create|install) (?:the )?runtime.?env|"
        r"runtime_env[^\n]*(?:failed|error)|Package size [^\n]* exceeds",
        "Ray could not set up the runtime environment (pip packages, or a working_dir that is too large or "
        "missing).",
        "Put packages into the image instead of runtime_env, and keep working_dir to the code; "
        "runtime_env_setup-*.log on the node has the installer's own words."),
    Signature(
        "ray/actor-died", ("actor died", "actordied", "worker died", "worker exit", "died unexpectedly", "node "
                                                                                                         "died",
                           "heartbeats", "nodediederror", "workercrashed"),
        r"ActorDied|[Aa]ctor died|WorkerCrashed|worker (?:process )?(?:has )?died|died unexpectedly|missed too "
        r"many heartbeats|node died|NodeDiedError|marked dead",
        "A Ray worker ({who}) or its node died, and nothing here says of what.",
        "Collect that pod's description (Last State, exit code), its node's conditions and kernel log, and the "
        "log of the rank whose lines end first.", confidence=SYMPTOM),
    Signature(
        "ray/no-gpu", ("no cuda gpus", "cuda device", "cuda is not available", "cuda-capable", "is_available"),
        r"(?:no usable CUDA device|No CUDA GPUs are available|no CUDA-capable device|"
        r"torch\.cuda\.is_available\(\)[^\n]*False|CUDA is not available)",
        "The worker sees no GPU: the pod got none, NVIDIA_VISIBLE_DEVICES hides it, or Ray's num-gpus differs "
        "from the pod's limit.",
        "Set nvidia.com/gpu in the pod's limits and num-gpus in rayStartParams from one number, leave "
        "NVIDIA_VISIBLE_DEVICES to the device plugin, and check `nvidia-smi` in the pod.", confidence=INFERRED),
    Signature(
        "ray/auth", ("unauthenticated", "ray_auth", "auth token", "invalid token"),
        r"(?:RAY_AUTH|auth(?:entication)? token)[^\n]*(?:missing|invalid|required|mismatch)|"
        r"Unauthenticated[^\n]*ray",
        "Ray's token authentication refuses: the client has no token, or another one than the cluster.",
        "Give submitter and clients the token's Secret (RAY_AUTH_TOKEN), as authOptions.mode token makes it."),
    Signature(
        "ray/storage-path", ("storage_path", "checkpoint"),
        r"storage_path[^\n]*(?:shared|node-local|cloud|must|not accessible)|RunConfig\(storage_path|"
        r"(?:no|could not find(?: any)?) checkpoint[^\n]*(?:ray_results|/tmp)",
        "Checkpoints went to a folder of one node (storage_path), which other nodes do not see and which went "
        "with it.",
        "Set storage_path to S3 or a shared file system; Eagle Ray always uses its bucket.", confidence=INFERRED),
    Signature(
        "ray/report-uneven", ("report",),
        r"(?:train\.report|report\(\))[^\n]*(?:waiting for|barrier|not (?:been )?called|timed out|all (?:ranks|"
        r"workers))|[^\n]*workers? (?:have|has) not (?:called|reached)[^\n]*report",
        "Not every rank called ray.train.report, which is a barrier: the others wait in it.",
        "Call it on all ranks the same number of times, outside of any branch for rank 0, with batches of equal "
        "number.",
        confidence=INFERRED),
)
