"""Why a pod does not run, or did not go on: image, mounts, memory, devices."""

from __future__ import annotations

import re

from ops.diagnose.evidence import Evidence, Hit
from ops.diagnose.finding import INFERRED, LIKELY, STATED, SYMPTOM, Finding, Signature

_IMAGE = r"(?:[Ff]ailed to pull|pull(?:ing)?|image|manifest)"
_KILLED = re.compile(r"OOMKilled|reason\W+OOMKilled|exceeded memory limit|Memory cgroup out of memory|"
                     r"oom-kill:|Killed process \d+ \((?P<process>[^)]+)\)", re.IGNORECASE)
_SHM = re.compile(r"out of shared memory|insufficient shared memory|/dev/shm/nccl|shm(?:fs|get)?[^\n]{0,40}No "
                  r"space left|unable to (?:allocate|mmap|open)[^\n]{0,40}shared memory|/dev/shm[^\n]{0,60}No "
                  r"space left|DataLoader worker[^\n]{0,40}Bus error|unexpected bus error", re.IGNORECASE)


def findings(evidence: Evidence) -> list[Finding]:
    """Pods."""
    own = [*_memory(evidence), *_shared_memory(evidence), *_crash_loop(evidence)]
    return [*own, *(found for signature in SIGNATURES for found in signature.findings(evidence))]


def _memory(evidence: Evidence) -> list[Finding]:
    hits = [hit for hit in evidence.grep(("oom", "memory cgroup", "killed process", "memory limit"), _KILLED)
            if "SystemOOM" not in hit.line.raw and not re.search(r"OOMKilled\W+(?:false|0|"
                                                                 r"none)\b", hit.line.raw, re.I)]
    if not hits:
        return []
    context = " ".join(line.raw for line in evidence.around(hits[0], before=60, after=12))
    container = _container_of(evidence, hits[0])
    if container == "wait-gcs-ready":
        return [Finding(
            "pod/init-oom", "The init container wait-gcs-ready, which KubeRay adds to workers with a memory limit "
                            "of "
            "256Mi, was OOMKilled: `ray health-check` of a large image needs more.",
            "Set ENABLE_INIT_CONTAINER_INJECTION=false for the operator and give the worker group an init "
            "container of its own with more memory.", [hit.line for hit in hits], INFERRED)]
    name = _pod_of(evidence, hits[0])
    head = "-head" in name or container == "ray-head"
    who, limit = name or ("the Ray head" if head else "a container"), _limit(context)
    mend = ("Give the head more memory (it holds GCS, dashboard and driver) and let it run no tasks: "
            "rayStartParams num-cpus: \"0\", as Eagle Ray sets it; a larger system.instance_type has room for it."
            if head else
            "Raise the pod's memory requests = limits (gpu.worker_memory_gib) as far as the node allows, or use "
            "less: fewer data workers, no offload to the CPU, smaller staging of checkpoints and object store; "
            "/dev/shm counts too.")
    return [Finding(
        "pod/head-oom" if head else "pod/oom-killed",
        f"{who[0].upper()}{who[1:]} was OOMKilled (exit code 137): it used more memory than its limit{limit} "
        "allows; what other ranks and the job report afterwards follows from it.",
        mend, [hit.line for hit in hits], STATED)]


def _pod_of(evidence: Evidence, hit: Hit) -> str:
    """The pod of a line: named in it, or in the nearest line above that names one."""
    for line in reversed(evidence.around(hit, before=120, after=0)):
        if found := re.search(r"\b([a-z][\w-]*-(?:head|worker)-[\w-]+)\b", line.raw):
            return f"pod {found[1]}"
    return ""


def _container_of(evidence: Evidence, hit: Hit) -> str:
    """The container of a line; `kubectl get -o yaml` sorts its keys, so that a name comes after the state."""
    above = list(reversed(evidence.around(hit, before=20, after=0)))
    below = evidence.around(hit, before=0, after=8)
    for line in (below + above) if re.match(r"^\s+reason: ", hit.line.raw) else above:
        if found := re.search(r"\b(wait-gcs-ready|ray-head|ray-worker)\b(?!-\w)", line.raw):
            return found[1]
    return ""


def _limit(context: str) -> str:
    found = re.search(r"Limits:.{0,120}?memory:\s+(\S+)", context)
    return f" of {found[1]}" if found else ""


def _shared_memory(evidence: Evidence) -> list[Finding]:
    hits = evidence.grep(("shared memory", "shm", "bus error"), _SHM)
    if not hits:
        return []
    sizes = evidence.grep("/dev/shm", r"^\S+\s+(?P<size>[\d.]+[KMGT])\s+\S+\s+\S+\s+(?P<use>\d+)%\s+/dev/shm")
    size = f" has {sizes[0].match['size']}" if sizes else " is at the container default of 64M"
    return [Finding(
        "pod/shared-memory", f"/dev/shm of the container{size} and is full, so data workers, NCCL and Ray's object "
        "store run out of shared memory.",
        "Mount an emptyDir with medium: Memory and a sizeLimit at /dev/shm in the worker's pod template, counted "
        "in the pod's memory limit. KubeRay does so by itself where the pod mounts nothing there.",
        [hit.line for hit in hits + sizes], INFERRED if sizes else STATED)]


def _crash_loop(evidence: Evidence) -> list[Finding]:
    hits = evidence.grep(("crashloop", "back-off restarting"), r"CrashLoopBackOff|Back-off restarting failed")
    return [Finding("symptom/crash-loop", "A container ends again and again; its own log says why.",
                    "Read `kubectl logs --previous` and the Last State of `kubectl describe pod`.",
                    [hit.line for hit in hits], SYMPTOM)] if hits else []


SIGNATURES = (
    Signature(
        "pod/image-rate-limit", ("429", "toomanyrequests", "rate limit"),
        r"(?:toomanyrequests|429 Too Many Requests|pull rate limit).*",
        "The registry (Docker Hub) answers 429: the NAT address of the cluster has used up the rate limit of pulls "
        "without a login.",
        "Pull from ECR: copy the image there or use a pull-through cache rule of ECR for Docker Hub with "
        "credentials; an imagePullSecret lifts the limit too. ray.image names the image.",
        unless=r"huggingface|S3|s3\.|(?:^|\W)botocore|dataset"),
    Signature(
        "pod/image-not-found", ("not found", "manifest unknown", "no match for platform"),
        rf"{_IMAGE}[^\n]*(?:: not found|manifest unknown|NAME_UNKNOWN|name unknown|does not exist)|"
        rf"(?P<platform>no match(?:ing manifest)? for (?:platform|linux))|exec format error",
        "The registry has no such image or tag (or none for the node's architecture).",
        "Check name, tag and region of ray.image (`aws ecr describe-images`); `eagleray preflight` asks the "
        "registry.",
        unless=r"nccl|libnccl|module"),
    Signature(
        "pod/image-denied", ("denied", "unauthorized", "authorization", "credentials", "403"),
        rf"{_IMAGE}[^\n]*(?:403 Forbidden|401 Unauthorized|no basic auth credentials|pull access denied|"
        r"authorization (?:failed|token has expired)|not authorized|ecr:\w+)",
        "The node may not pull the image: the node role lacks ECR permission, or the private registry wants a "
        "login.",
        "Give the node role AmazonEC2ContainerRegistryPullOnly (for another account's repository a repository "
        "policy too), or name an imagePullSecret."),
    Signature(
        "pod/image-unreachable", ("i/o timeout", "no such host", "dial tcp", "connection refused", "deadline "
                                                                                                   "exceeded"),
        rf"{_IMAGE}[^\n]*(?:i/o timeout|no such host|connection (?:refused|timed out)|network is unreachable|"
        r"context deadline exceeded|TLS handshake timeout)",
        "The node does not reach the image's registry: its subnet has no route out (NAT gateway or ECR and S3 "
        "endpoints), or no DNS.",
        "Give the subnet a route through a NAT gateway, or interface endpoints for ecr.api and ecr.dkr and a "
        "gateway endpoint for S3."),
    Signature(
        "pod/image-no-space", ("no space left",),
        rf"{_IMAGE}[^\n]*no space left on device|(?:containerd|extract|unpack|layer)[^\n]*no space left on device",
        "The node's disk is full while the image is unpacked.",
        "Raise gpu.volume_gib (system.volume_gib on the system node): the training image takes more than 20 GiB, "
        "twice that while it is unpacked."),
    Signature(
        "pod/nvml-without-gpu", ("nvml", "nvidia-container-cli", "nvidia-smi"),
        r"(?:nvml|nvidia-container-cli|NVIDIA)[^\n]*(?:driver not loaded|driver/?rpc error|initialization error|"
        r"couldn't communicate|Driver Not Loaded)",
        "A CUDA image starts on a node without GPU or driver (NVML: driver not loaded): the image asks for all "
        "GPUs (NVIDIA_VISIBLE_DEVICES=all).",
        "Set NVIDIA_VISIBLE_DEVICES=void on the head and the submitter, as Eagle Ray does; on a GPU node use an "
        "AMI with the driver.", INFERRED),
    Signature(
        "pod/config-missing", ("configmap", "secret", "createcontainerconfigerror"),
        r"(?P<what>(?:configmap|secret)s? \"?[\w.-]+\"?) not found|references non-existent (?:secret|config) key",
        "The pod names {what}, which is not in its namespace.",
        "Create it in the pod's namespace or mend the name; Eagle Ray's own come with `cdk deploy TrainingStack`.",
        default={"what": "a ConfigMap or Secret"}),
    Signature(
        "pod/volume-mount", ("failedmount", "failedattachvolume", "mountvolume", "mount failed", "mount.nfs",
                             "mount.lustre"),
        r"FailedMount|FailedAttachVolume|MountVolume\.\w+ failed|mount\.(?:nfs4?|lustre)[^\n]*(?:timed out|denied|"
        r"failed)",
        "A volume of the pod cannot be mounted or attached: {why}.",
        "See its events (`kubectl describe pod`, `kubectl get pvc,pv`): the claim's driver must run on the node, "
        "the security group must admit NFS (2049) or Lustre (988), and an EBS volume must be in the node's zone.",
        unless=r"configmap|secret", confidence=INFERRED, default={"why": "see the line"}),
    Signature(
        "pod/claim-pending", ("persistentvolumeclaim", "unbound"),
        r"unbound immediate PersistentVolumeClaims|persistentvolumeclaim \"?(?P<claim>[\w.-]+)\"? not found|"
        r"waiting for a volume to be created",
        "The pod waits for a persistent volume claim that is not bound.",
        "Install the CSI driver and name a storage class that exists (`kubectl get sc,pvc`)."),
    Signature(
        "pod/volume-zone", ("volume node affinity",), r"volume node affinity conflict",
        "The pod's persistent volume lies in another zone than the nodes that it could run on.",
        "Make the volume in the nodes' zone (storage class with volumeBindingMode: WaitForFirstConsumer), or use "
        "S3, EFS or FSx, which the job's zone reaches."),
    Signature(
        "pod/device-allocation", ("unexpectedadmissionerror", "allocate failed", "no healthy devices"),
        r"UnexpectedAdmissionError|Allocate failed due to|no healthy devices present",
        "The kubelet could not hand devices to the pod: the device plugin reports none as healthy, or was "
        "restarting.",
        "See the device plugin's log on that node and `nvidia-smi`; delete the failed pod so that it is made "
        "again, and drain the node if a device stays unhealthy.", INFERRED),
    Signature(
        "pod/quota", ("exceeded quota",), r"exceeded quota: (?P<quota>[\w.-]+)",
        "The namespace's ResourceQuota {quota} is used up, so the pod is not made.",
        "Raise that ResourceQuota, or end what uses it (`kubectl describe quota`)."),
    Signature(
        "pod/admission", ("denied the request", "violates podsecurity", "forbidden"),
        r"admission webhook \S+ denied the request|violates PodSecurity|pods? \S+ is forbidden: (?!exceeded)",
        "An admission rule of the cluster refuses the pod.",
        "Change the field that the line names, or the namespace's pod-security label or the policy."),
    Signature(
        "pod/invalid", ("is invalid",), r"(?:Pod|pod) \S+ is invalid: (?P<why>.{0,200})",
        "The API server refuses the pod: {why}.",
        "Mend that field in the pod template; `eagleray check` finds such faults before a deployment."),
    Signature(
        "pod/probe", ("probe failed",), r"(?P<probe>Liveness|Startup) probe failed",
        "The {probe} probe fails, so the kubelet restarts the container.",
        "Read `kubectl logs --previous`; a head under load needs more CPU and memory, or a longer probe timeout.",
        confidence=LIKELY),
)
