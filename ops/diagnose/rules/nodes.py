"""What breaks a node or a GPU, and GPU errors that a program makes itself."""

from __future__ import annotations

import re

from ops.diagnose.evidence import Evidence, Hit
from ops.diagnose.finding import INFERRED, LIKELY, STATED, Finding, Signature, ranks_in_words
from ops.diagnose.lines import Line

_ECC = re.compile(r"uncorrectable (?:ECC|NVLink)? ?(?:memory )?error|double.?bit (?:ECC )?error|"
                  r"\bXid\b[^\n]*?: ?(?P<xid>48|63|64|94|95)\b|XID[- ]?(?P<named>48|63|64|94|95)(?=\D)|"
                  r"DBE \(Double|ECC error", re.IGNORECASE)
_BUS = re.compile(r"(?P<bus>(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-9a-f])?)", re.IGNORECASE)
_HARD_XIDS = {"79": "fell off the PCIe bus", "74": "has an NVLink error", "119": "does not answer its driver (GSP)",
              "120": "does not answer its driver (GSP)", "62": "halted", "92": "has too many single-bit ECC errors",
              "140": "has an uncorrectable memory error", "145": "has an NVLink error", "149": "has an NVLink "
                                                                                               "error"}
_SOFT_XIDS = ("13", "31", "43", "45", "68", "69")
_ILLEGAL = re.compile(r"illegal memory access|device-side assert|misaligned address|CUDA error: an illegal|"
                      r"illegal instruction was encountered", re.IGNORECASE)
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')


def findings(evidence: Evidence) -> list[Finding]:
    """GPUs and nodes."""
    own = [*_ecc(evidence), *_lost_gpu(evidence), *_illegal_access(evidence), *_node_memory(evidence)]
    return [*own, *(found for signature in SIGNATURES for found in signature.findings(evidence))]


def _ecc(evidence: Evidence) -> list[Finding]:
    hits = [hit for hit in evidence.grep(("ecc", "xid", "double", "uncorrectable"), _ECC)
            if not re.search(r"\b(?:no|0|zero) (?:uncorrectable|ECC|double)|ECC errors?[:=] "
                             r"?0", hit.line.text, re.I)]
    pending = _remapped(evidence)
    if not hits and not pending:
        return []
    line = hits[0].line if hits else pending[0][1]
    place, bus = _place(hits, line), pending[0][0] if pending else _bus(hits)
    node = place or "that node"
    rank = f" and killed {ranks_in_words([line.rank])}" if line.rank is not None else ""
    return [Finding(
        "node/ecc", f"An uncorrectable (double-bit) ECC memory error of GPU {bus or 'of that node'} on {node}"
        f"{rank}" + ("; a row remap is pending until the GPU is reset." if pending else "."),
        f"Drain {node} (`kubectl drain`), then reset the GPU or reboot or replace the instance so that rows are "
        "remapped (`nvidia-smi --query-remapped-rows`); the job goes on from its last checkpoint. Replace the "
        "instance for good if a remapping fails or it happens again.",
        [hit.line for hit in hits] + [found for _, found in pending], STATED)]


def _remapped(evidence: Evidence) -> list[tuple[str, Line]]:
    """GPUs with a pending or failed row remap: rows `bus, correctable, uncorrectable, pending, failure`."""
    hits = evidence.grep((", yes", "pending"), r"^\s*(?P<bus>[0-9a-f:.]+), \d+, \d+, (?:Yes, \w+|\w+, Yes)\s*$")
    return [(hit.match["bus"], hit.line) for hit in hits]


def _bus(hits: list[Hit]) -> str:
    for hit in hits:
        if "xid" in hit.line.text.lower() and (found := _BUS.search(hit.line.text.split("PCI")[-1])):
            return found["bus"]
    return ""


def _place(hits: list[Hit], line: Line) -> str:
    for hit in hits:
        found = re.search(r"\b(ip-\d+-\d+-\d+-\d+)\b", hit.line.raw)
        if found:
            return found[1]
    return f"ip-{line.place.replace('.', '-')}" if re.fullmatch(r"[\d.]+", line.place) else line.place


def _lost_gpu(evidence: Evidence) -> list[Finding]:
    numbers = "|".join(_HARD_XIDS)
    hits = evidence.grep(("xid", "fallen off"),
                         rf"\bXid\b[^\n]*?: ?(?P<xid>{numbers})\b|XID[- ]?(?P<named>{numbers})(?!\d)|"
                         r"fallen off the bus")
    if not hits:
        return []
    first = hits[0]
    xid = first.match["xid"] or first.match["named"] or "79"
    node = _place(hits, first.line) or "that node"
    return [Finding(
        "node/gpu-lost", f"GPU {_bus(hits) or ''} of {node} {_HARD_XIDS[xid]} (Xid {xid}): a hardware fault.",
        f"Cordon and drain {node} and replace the instance (terminate it: the Auto Scaling group makes a new "
        "one); the job goes on from its last checkpoint.", [hit.line for hit in hits], STATED)]


def _illegal_access(evidence: Evidence) -> list[Finding]:
    """The program's own kernel: an Xid of software, or CUDA's words, with the Python line that called it."""
    errors = evidence.grep(("illegal", "assert", "misaligned"), _ILLEGAL)
    numbers = "|".join(_SOFT_XIDS)
    xids = evidence.grep("xid", rf"\bXid\b[^\n]*?: ?(?:{numbers})\b|XID[- ]?(?:{numbers})(?!\d)")
    if not errors and not xids:
        return []
    lines = [hit.line for hit in errors + xids]
    if not errors:
        return [Finding(
            "node/program-xid", "The program made a GPU memory fault (Xid 31 or 13): most often a kernel of its "
                                "own "
            "and not the GPU.", "Run the step once with CUDA_LAUNCH_BLOCKING=1 to see which operation it is; only "
                                "if "
            "it stays with one node whatever runs there, look at that GPU.", lines, LIKELY)]
    if "assert" in errors[0].match[0].lower():
        return [Finding(
            "trainer/device-assert", "An operation on the GPU was given an index out of range (device-side "
                                     "assert): "
            "most often a token id or label that is not in the model's vocabulary.",
            "Run once with CUDA_LAUNCH_BLOCKING=1; compare the tokenizer's vocabulary with the model's, and make "
            "the token files again with the model's own tokenizer.", lines, INFERRED)]
    frame = _frame(evidence, errors[0])
    places = {match[0] for line in lines for match in re.finditer(r"ip-\d+-\d+-\d+-\d+|"
                                                                  r"[\w-]+-worker-\w+", line.raw)}
    several = f"; it happens on {len(places)} nodes alike, so it is the software" if len(places) > 1 else ""
    return [Finding(
        "trainer/illegal-access", "An illegal memory access of a CUDA "
                                  f"kernel{f' called in {frame}' if frame else ''} "
        f"(Xid 31 is its trace on the node){several}.",
        "Run once with CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer and mend the bounds of "
        f"{frame or 'that kernel'}, or switch it off; the nodes stay in service.", lines, INFERRED)]


def _frame(evidence: Evidence, hit: Hit) -> str:
    """`kernels/rope.py line 88`: the last Python line above the error that is no library's, else the last."""
    frames = [found for line in evidence.around(hit, before=30, after=0) if (found := _FRAME.search(line.text))]
    own = [found for found in frames if not re.search(r"site-packages|dist-packages|/lib/python", found["file"])]
    chosen = (own or frames)[-1] if frames else None
    return f"{chosen['file'].rsplit('/', 1)[-1]} line {chosen['line']}" if chosen else ""


def _node_memory(evidence: Evidence) -> list[Finding]:
    hits = evidence.grep(("systemoom", "system oom"), r"System ?OOM")
    if not hits:
        return []
    pods = evidence.grep("(", r"^\s*\S+\s+(?P<pod>\S+)\s+\S+ \(\d+%\).*\s0 \(0%\)\s*(?:\S+\s*)?$")
    no_limit = [hit for hit in pods if "worker" in hit.match["pod"]] or pods
    culprit = f"pod {no_limit[0].match['pod']}, which has no memory limit," if no_limit else \
        "A pod without a memory limit, or with one above what the node has,"
    return [Finding(
        "node/system-oom", f"{culprit[0].upper()}{culprit[1:]} used up the node's memory: the kernel killed "
                           "processes "
        "of the host too (SystemOOM), and the kubelet stopped answering.",
        "Give the Ray worker memory requests = limits below what the node can allocate (160Gi on a g6.12xlarge, as "
        "Eagle Ray sets), use less host memory (data workers, offload, staging of checkpoints), and reboot or "
        "replace the node.", [hit.line for hit in hits] + [hit.line for hit in no_limit], INFERRED)]


SIGNATURES = (
    Signature(
        "node/driver-mismatch", ("driver/library version mismatch", "driver version is insufficient",
                                 "cuda driver version"),
        r"Driver/library version mismatch|CUDA driver version is insufficient|driver on your system is too old",
        "The NVIDIA driver of the node and the CUDA libraries of the image do not fit each other.",
        "Use an AMI whose driver the image's CUDA supports (replace nodes that were updated under way), or another "
        "image."),
    Signature(
        "node/fabric-manager", ("fabric", "error 802", "system not yet initialized"),
        r"error 802|system not yet initialized|fabric ?manager.{0,60}(?:not running|fail|inactive|mismatch)",
        "The NVSwitch fabric manager does not run on {who} (CUDA error 802).",
        "Start nvidia-fabricmanager of the driver's very version on the node, or replace the node."),
    Signature(
        "node/disk-pressure", ("diskpressure", "disk pressure", "ephemeral-storage", "imagefs", "nodefs"),
        r"DiskPressure\s+True|NodeHasDiskPressure|low on resource: (?:ephemeral-storage|imagefs|nodefs)|"
        r"FreeDiskSpaceFailed|had condition: \[DiskPressure\]",
        "The node's disk is full (ephemeral-storage), and the kubelet evicts pods.",
        "Find what wrote (`du` below /var/lib/containerd, /var/log, the pod's emptyDir and /tmp/ray), write it to "
        "a larger or another volume, raise the node's disk size (gpu.volume_gib), and give pods an "
        "ephemeral-storage request."),
    Signature(
        "node/memory-pressure", ("memorypressure", "low on resource: memory"),
        r"MemoryPressure\s+True|NodeHasInsufficientMemory|low on resource: memory",
        "The node ran short of memory and the kubelet evicted pods.",
        "Give pods memory requests = limits below what the node can allocate; use less host memory."),
    Signature(
        "node/no-addresses", ("ip address", "insufficientfreeaddresses", "insufficientcidrblocks"),
        r"failed to assign an IP address|InsufficientFreeAddressesInSubnet|InsufficientCidrBlocks|"
        r"no available IP addresses",
        "The subnet has no free IP addresses left for pods.",
        "Use a larger subnet (network.cidr) or turn on prefix delegation of the VPC CNI, and delete what is left "
        "over."),
    Signature(
        "node/cni", ("networkplugin", "network plugin", "cni"),
        r"cni (?:plugin|config)\w* (?:not initialized|uninitialized)|NetworkPluginNotReady|"
        r"aws-node.{0,60}(?:CrashLoop|not ready)|failed to (?:set ?up|setup) network for sandbox",
        "The node's network plugin (VPC CNI, aws-node) is not ready, so no pod gets a network.",
        "Look at aws-node's log on that node; its role needs AmazonEKS_CNI_Policy and its subnet free addresses.",
        INFERRED),
    Signature(
        "node/container-runtime", ("pleg", "container runtime", "runtime network", "containerd"),
        r"PLEG is not healthy|container runtime is down|KubeletNotReady[^\n]*runtime|containerd[^\n]*(?:not "
        r"responding|is not running)",
        "The node is NotReady because its container runtime does not answer the kubelet (PLEG), most often under "
        "a full disk, a hung mount or a GPU driver that hangs.",
        "Drain the node and reboot or replace it; before that look at `journalctl -u containerd -u kubelet` and "
        "dmesg.",
        confidence=LIKELY),
    Signature(
        "node/slow-clock", ("thermal", "hw slowdown", "sw power cap", "power brake"),
        r"(?:HW|SW) (?:Thermal )?Slowdown\s*:? ?Active|thermal (?:slowdown|throttl\w+|violation)|Power "
        r"?Brake[^\n]*: Active",
        "A GPU on {who} slows its clock down for heat or power, and all ranks wait for it.",
        "Compare `nvidia-smi -q -d PERFORMANCE,CLOCK` across nodes, and drain and replace the node whose GPU is "
        "slow."),
    Signature(
        "node/status-check", ("status check", "impaired", "scheduled for retirement", "instance-retirement"),
        r"(?:system|instance) status check[^\n]{0,40}(?:fail|impaired)|status\W+impaired|"
        r"scheduled (?:for )?retirement|instance-retirement",
        "EC2 reports the instance as impaired or about to be retired: its host has a fault.",
        "Drain the node and replace the instance (stop and start moves it to another host)."),
    Signature(
        "node/terminated", ("deletingnode", "terminatingevictedpod", "removingnode", "instance terminated",
                            "does not exist in the cloud provider"),
        r"does not exist in the cloud provider|DeletingNode|instance .{0,40}(?:was|been) terminated|node "
        r".{0,40}removed by cluster.autoscaler|ScaleDown\b.{0,60}(?:removed|deleting)",
        "The instance of the node is gone: it was terminated or scaled down while the job ran.",
        "See who ended it (Auto Scaling activity, CloudTrail TerminateInstances, the end of a Capacity Block); "
        "the job goes on from its last checkpoint once a node is there.", INFERRED),
)
