"""NCCL and EFA: what training.transport makes of the same lines, with what else is known of the network."""

from __future__ import annotations

import io
import re

from ops.diagnose.evidence import Evidence
from ops.diagnose.finding import INFERRED, LIKELY, STATED, SYMPTOM, Finding, Signature
from ops.diagnose.lines import Line
from training.transport import Reason, TransportReader, Verdict, verdict
from training.transport_lines import said as transport_said

_MEANS = {"error": STATED, "fallback": INFERRED, "tcp": INFERRED}
# A reason of the transport's verdict as a cause and a fix; those not here keep the verdict's own words.
_WORDS = {
    "pod_identity_nic": (
        "NCCL uses pod-id-link0, the link-local interface of the EKS Pod Identity agent (169.254.170.x), which no "
        "other node can reach{fallback}, so connections between nodes fail.",
        "Set NCCL_SOCKET_IFNAME=eth0 (with hostNetwork the node's own interface, or add pod-id-link0 to what it "
        "excludes: ^lo,docker,veth,eni,pod-id-link0), and give the pod its vpc.amazonaws.com/efa device so that "
        "NCCL need not use sockets at all."),
    "memlock_limit": (
        "The container's locked-memory limit (memlock{limit}) is too low: the EFA provider cannot pin its buffers, "
        "whatever memory is free.",
        "Raise memlock to unlimited, or at least 8388608 KiB: LimitMEMLOCK=infinity for containerd in the node's "
        "user data (EKS's AL2023 images have it) or `ulimit -l unlimited` in an entrypoint with IPC_LOCK; then "
        "start the pods again."),
    "no_eligible_provider": (
        "Libfabric found no EFA device in the pod, so NCCL goes over TCP or stops.",
        "Request vpc.amazonaws.com/efa in the pod's limits, check that the EFA device plugin runs on that node "
        "(`kubectl get node -o yaml`: allocatable), and that `fi_info -p efa` lists a device in the pod."),
    "efa_peer_lost": (
        "A peer that had answered over EFA stopped answering: its process or node died in the middle of the run; "
        "the network itself was right.",
        "Find the rank whose log ends first and what ended it (`kubectl describe pod`, node conditions, kernel "
        "log)."),
}


def findings(evidence: Evidence) -> list[Finding]:
    """Faults of the wire. A job that needs no wire, or whose log only lacks proof, has none."""
    found = judged(evidence)
    own = [_finding(evidence, reason) for reason in found.reasons if _weight(reason) in _MEANS]
    network = [named for signature in SIGNATURES for named in signature.findings(evidence)]
    return [*own, *network]


def judged(evidence: Evidence) -> Verdict:
    """The verdict of `eagleray transport` on all documents, a person's remarks left out."""
    reader = TransportReader()
    for document in evidence.documents:
        text = "\n".join(row for row in document.rows if not row.startswith(("# ", "$ ")))
        reader.read(io.BytesIO(text.encode(errors="replace")), document.name)
    return verdict(reader.finish())


def _weight(reason: Reason) -> str:
    from training.transport_reasons import REASONS

    return "symptom" if reason.code == "nccl_failed" else REASONS[reason.code].weight


def _finding(evidence: Evidence, reason: Reason) -> Finding:
    lines = _lines_of(evidence, reason.code)
    if reason.code == "efa_peer_unreachable":
        return _unreachable(evidence, lines)
    cause, fix = _WORDS.get(reason.code, ("", ""))
    weight = _weight(reason)
    if not cause:
        cause = f"{reason.detail[0].upper()}{reason.detail[1:]}."
        fix = f"{reason.mend[0].upper()}{reason.mend[1:]}."
    both = evidence.has("provider", r"No eligible providers were found")
    limit = evidence.grep("locked memory", r"locked memory\s+(?P<bytes>\d+)")
    words = {"fallback": " (it fell back to TCP sockets)" if both else "",
             "limit": f", {int(limit[0].match['bytes']) >> 20} MiB" if limit else ""}
    for name, value in words.items():
        cause = cause.replace(f"{{{name}}}", value)
    confidence = LIKELY if reason.code in ("efa_peer_lost", "efa_request_failed") else _MEANS[weight]
    return Finding(f"wire/{reason.code}", cause, fix, lines, confidence)


def _lines_of(evidence: Evidence, code: str) -> list[Line]:
    """The lines in which the transport's reader sees that fault (its raw codes have some other names)."""
    raw = {"efa_peer_unreachable": {"peer_silent"}, "plugin_not_found": {"plugin_not_found", "plugin_absent"},
           "socket_network": {"socket_network", "socket_channel", "socket_prepared"},
           "efa_peer_lost": {"efa_peer_lost", "peer_silent"},
           "no_eligible_provider": {"no_eligible_provider", "protocol_failed"},
           "plugin_init_failed": {"plugin_init_failed", "protocol_failed"}}.get(code, {code})
    words = ("nccl", "libfabric", "efa", "fork", "huge", "error", "unresponsive", "provider", "169.254")
    found: list[Line] = []
    for hit in evidence.grep(words, r"."):
        heard = transport_said(hit.line.raw)
        if heard and raw & set(heard.faults):
            found.append(hit.line)
            if len(found) >= 20:
                break
    return found


def _unreachable(evidence: Evidence, lines: list[Line]) -> Finding:
    outbound, shown = _self_egress(evidence)
    if outbound is True:
        return Finding(
            "wire/efa-other-subnet", "EFA peers do not reach each other although the security group allows all "
                                     "traffic from "
            "and to itself: the nodes are in different subnets or zones, or in different security groups.",
            "Put all GPU nodes into one subnet and one security group (`aws ec2 describe-instances`: SubnetId, "
            "NetworkInterfaces[].Groups).", [*lines, *shown], LIKELY)
    group = re.search(r"sg-\w+", " ".join(line.raw for line in shown))
    target = group[0] if group else "the group itself"
    seen = "its outbound rules name only address ranges" if outbound is False else \
        "its inbound or outbound rule to itself is missing, most likely the outbound one"
    return Finding(
        "wire/efa-security-group", f"The nodes' security group does not let EFA traffic through: {seen}. EFA is "
                                   "not IP, so "
        "0.0.0.0/0 does not cover it and the first handshake gets no answer.",
        f"Add an outbound all-traffic rule whose destination is {target} (and the inbound one from itself): in CDK "
        "EfaSecurityGroup does so, or allow_all_outbound=False with add_egress_rule(sg, Port.all_traffic()). All "
        "nodes must be in one subnet.", [*lines, *shown], STATED if outbound is False else INFERRED)


def _self_egress(evidence: Evidence) -> tuple[bool | None, list[Line]]:
    """Whether a shown security group has an outbound rule that names a group; None where none was shown."""
    for found, line in evidence.objects:
        groups = found.get("SecurityGroups")
        candidates = groups if isinstance(groups, list) else [found]
        for each in candidates:
            out = each.get("IpPermissionsEgress", each.get("Out")) if isinstance(each, dict) else None
            if isinstance(out, list):
                named = any(isinstance(rule, dict) and rule.get("UserIdGroupPairs") for rule in out)
                return named, [line]
    return None, []


SIGNATURES = (
    Signature(
        "wire/no-interface", ("no socket interface", "no interface found", "bootstrap"),
        r"no socket interface found|Bootstrap : no (?:socket )?interface",
        "NCCL finds no network interface of the name that NCCL_SOCKET_IFNAME asks for.",
        "Set NCCL_SOCKET_IFNAME=eth0 in pods (with hostNetwork the node's interface, `ip -br addr`)."),
    Signature(
        "wire/duplicate-gpu", ("duplicate gpu",), r"Duplicate GPU detected",
        "Two ranks use the same GPU.",
        "Give each rank its own device (torch.cuda.set_device of the local rank) and no more ranks a node than it "
        "has GPUs."),
    Signature(
        "wire/ports-blocked", ("connection timed out", "no route to host", "socket timeout", "connect timeout"),
        r"(?:NCCL|Gloo|gloo|c10d|TCPStore|socketPoll|socket\.cpp)[^\n]*(?:timed out|No route to host|timeout)",
        "Ranks do not reach each other over TCP: a security group or NetworkPolicy blocks the pods' ports, or a "
        "rank never started.",
        "Let pods of the job talk to each other on all ports (NetworkPolicy, security group), and see that each "
        "rank's pod was running at that time.", confidence=LIKELY,
        unless=r"169\.254|Watchdog caught|collective operation timeout"),
    Signature(
        "symptom/nccl-failed", ("nccl error", "ncclremoteerror", "ncclsystemerror", "network error"),
        r"NCCL error|ncclRemoteError|ncclSystemError|remote process exited or there was a network error",
        "NCCL gave up on {who}: another rank is gone or not reachable, and nothing here says which or why.",
        "Collect the logs of all ranks: the one that failed first has the cause. Set NCCL_DEBUG=INFO and "
        "NCCL_DEBUG_FILE.",
        confidence=SYMPTOM),
)
