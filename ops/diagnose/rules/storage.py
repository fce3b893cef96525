"""Disks, object stores and buckets."""

from __future__ import annotations

import re

from ops.diagnose.evidence import Evidence
from ops.diagnose.finding import INFERRED, LIKELY, Finding, Signature


def findings(evidence: Evidence) -> list[Finding]:
    """Storage."""
    return [*_spill(evidence), *(found for signature in SIGNATURES for found in signature.findings(evidence))]


def _spill(evidence: Evidence) -> list[Finding]:
    """Ray's objects on the node's disk, and a disk that is full."""
    spilled = evidence.grep("spill", r"Spilled (?P<mib>\d+) MiB|[Ss]pilling")
    full = evidence.grep(("full", "outofdisk", "no space left"), r"is over \d+% full|OutOfDiskError|Local disk is "
                                                                 r"full|"
                         r"object store[^\n]*full|No space left on device")
    evicted = evidence.grep("ephemeral-storage", r"low on resource: ephemeral-storage|exceeds?[^\n]*ephemeral")
    ray = [hit for hit in full if re.search(r"ray|object|Local disk", hit.line.raw, re.IGNORECASE)]
    if not ray and not (spilled and (full or evicted)):
        return []
    volumes = [int(hit.match["mib"]) for hit in spilled if hit.match["mib"]]
    amount = f" about {max(volumes) / 1000:.0f} GB of" if volumes else ""
    capacity = evidence.grep("capacity:", r"capacity: (?P<size>[\d.]+) GB")
    disk = f"the {float(capacity[0].match['size']):.0f} GB disk" if capacity else "the disk"
    end = " and the kubelet evicted the worker for ephemeral storage" if evicted else ""
    return [Finding(
        "storage/spill-fills-disk", f"Ray spilled{amount} objects to /tmp/ray, {disk} ran full{end}.",
        "Spill to instance-store NVMe or a larger volume (gpu.volume_gib, or object_spilling_directory on a "
        "mount), do not materialise or shuffle the whole dataset at once, and give the pod an ephemeral-storage "
        "request.",
        [hit.line for hit in spilled + full + evicted], INFERRED)]


SIGNATURES = (
    Signature(
        "storage/slow-down", ("slowdown", "reduce your request rate", "503 slow"),
        r"(?-i:\bSlowDown\b)|reduce your request rate|503[^\n]*Slow ?Down",
        "S3 answers SlowDown (503) to {who}: too many requests a second on one prefix.",
        "Use adaptive retries with fewer parallel writers, or spread the keys over prefixes."),
    Signature(
        "storage/denied", ("accessdenied", "access denied", "403", "forbidden"),
        r"(?:S3|s3|GetObject|PutObject|HeadObject|ListObjects\w*|ListBucket|"
        r"CreateMultipartUpload)[^\n]*(?:AccessDenied|Access Denied|Forbidden|\b403\b)|(?:AccessDenied|Access "
        r"Denied|403)[^\n]*(?:s3:|S3|GetObject|PutObject|HeadObject|ListObjects|ListBucket|Multipart)",
        "The pods' role may not use the S3 bucket (AccessDenied).",
        "Give the pods' service account a role for that bucket and prefix (Pod Identity association; Eagle Ray's "
        "job has one for its own bucket and for what training.data.path names), and see that the bucket's policy "
        "and key allow it."),
    Signature(
        "storage/no-bucket", ("nosuchbucket", "specified bucket"), r"NoSuchBucket|The specified bucket does not "
                                                                   r"exist",
        "The S3 bucket does not exist (or not under that name).",
        "Mend the bucket's name, or deploy TrainingStack, which makes the results bucket."),
    Signature(
        "storage/no-key", ("nosuchkey", "key does not exist"), r"NoSuchKey|specified key does not exist",
        "An object that the job reads from S3 is not there.",
        "Mend the path that the line names; `aws s3 ls` shows what there is.", confidence=LIKELY),
    Signature(
        "storage/no-credentials", ("unable to locate credentials", "credentials not found", "nocredentials"),
        r"Unable to locate credentials|NoCredentialsError",
        "The process has no AWS credentials: in a pod, the Pod Identity association of its service account is "
        "missing, or the agent does not run on the node.",
        "Check serviceAccountName of the pod and `aws eks list-pod-identity-associations`, and that "
        "eks-pod-identity-agent runs on that node.", unless=r"sso|profile|aws configure", confidence=INFERRED),
    Signature(
        "storage/no-space", ("no space left", "disk quota", "errno 28"), r"No space left on device|Errno 28|Disk "
                                                                         r"quota exceeded",
        "A disk is full where the job writes.",
        "Find what fills it (`df -h`, `du`), write it to a larger volume (gpu.volume_gib) or to S3, and clear old "
        "sessions below /tmp/ray.", unless=r"shm|[Ii]mage|pull|containerd|unpack|extract"),
    Signature(
        "storage/checkpoint-broken", ("checkpoint", ".metadata", "dcp"),
        r"(?:checkpoint|\.metadata|\.distcp)[^\n]*(?:incomplete|corrupt|missing|truncated|not found|No such file)|"
        r"CheckpointException",
        "The checkpoint is incomplete: its writing was cut off, or a rank's shard is missing.",
        "Resume from the one before it; Eagle Ray marks complete checkpoints and takes only "
        "these.", confidence=LIKELY),
)
