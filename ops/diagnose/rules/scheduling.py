"""Pods that stay Pending: what the scheduler and the autoscaler say, against what pods ask and nodes offer."""

from __future__ import annotations

import re
from collections.abc import Sequence

from eagleray.catalog import InstanceType, instance_types
from ops.diagnose.evidence import Evidence, Hit, Node
from ops.diagnose.finding import INFERRED, LIKELY, STATED, SYMPTOM, Finding
from ops.diagnose.lines import Line

GPU, EFA = "nvidia.com/gpu", "vpc.amazonaws.com/efa"
_TYPE_LABEL = "node.kubernetes.io/instance-type"
_PENDING = re.compile(r"\d+/\d+ nodes are available: (?P<why>.*?)(?:\. preemption|$)")
_SHORT = re.compile(r"Insufficient ([\w./-]+)")
_NO_SCALE_UP = re.compile(r"did(?:n't| not) trigger scale-?up:?\s*(?P<why>.*)|NotTriggerScaleUp|NoExpansionOptions|"
                          r"max(?:imum)? node group size reached|max (?:cluster|total) .{0,20}limit", re.IGNORECASE)
_PLUGINS = {GPU: "NVIDIA device plugin", EFA: "EFA device plugin"}


def findings(evidence: Evidence) -> list[Finding]:
    """Why pods are not scheduled. A finding of a pod that waits only for a scale-up under way is none."""
    pending = evidence.grep(("nodes are available", "insufficient "), _PENDING)
    plugins = _plugins(evidence)
    if not pending:
        return plugins
    short = [name for hit in pending for name in _SHORT.findall(hit.match["why"] or "")]
    resources = list(dict.fromkeys(name.rstrip(".,") for name in short))
    steps = (_huge_pages, _beyond_the_type, _not_offered, _autoscaler)
    for step in steps:
        if found := step(evidence, pending, resources):
            return found
    if plugins:
        return plugins
    return _scheduler_alone(evidence, pending, resources)


def _lines(hits: Sequence[Hit]) -> list[Line]:
    return [hit.line for hit in hits]


def _huge_pages(evidence: Evidence, pending: list[Hit], resources: list[str]) -> list[Finding]:
    if not any(name.startswith("hugepages") for name in resources):
        return []
    return [Finding(
        "schedule/huge-pages", "The pod asks for huge pages (hugepages-2Mi) and no node reserves any.",
        "Take hugepages-2Mi out of the pod's resources and set FI_EFA_USE_HUGE_PAGE=0: EFA does not need them.",
        _lines(pending), STATED)]


def _beyond_the_type(evidence: Evidence, pending: list[Hit], resources: list[str]) -> list[Finding]:
    """A request that no instance of its type could ever meet."""
    known = instance_types()
    for pod in evidence.pods.values():
        kind = known.get(pod.selector.get(_TYPE_LABEL, "")) or _only_type(evidence)
        if kind is None:
            continue
        for name, has in (("EFA", kind.efa), ("GPU", kind.gpus)):
            resource = EFA if name == "EFA" else GPU
            asked = pod.requests.get(resource, "0")
            if resource in resources and asked.isdigit() and int(asked) > has:
                things = "EFA interfaces" if name == "EFA" else "GPUs"
                return [Finding(
                    "schedule/beyond-instance", f"The pod asks for {asked} {things} ({resource}), and a "
                                                f"{kind.type} "
                    f"has {has}: no node of that type can ever fit it.",
                    f"Set {resource}: {has} for {kind.type}{_others(resource)}; Eagle Ray derives it from "
                    "gpu.instance_type, and `eagleray check` finds it in other manifests.",
                    [pod.line, *_lines(pending)], STATED)]
    return []


def _others(resource: str) -> str:
    p5 = instance_types()["p5.48xlarge"]
    return f" ({p5.efa if resource == EFA else p5.gpus} for {p5.type})"


def _only_type(evidence: Evidence) -> InstanceType | None:
    types = {node.instance_type for node in evidence.nodes.values() if node.instance_type}
    gpu_types = [found for name in types if (found := instance_types().get(name)) and found.gpus]
    return gpu_types[0] if len(gpu_types) == 1 else None


def _not_offered(evidence: Evidence, pending: list[Hit], resources: list[str]) -> list[Finding]:
    """Nodes whose type has a device that they do not advertise: its plugin does not run there."""
    known = instance_types()
    for resource in (GPU, EFA):
        for node in evidence.nodes.values():
            kind = known.get(node.instance_type)
            has = (kind.gpus if resource == GPU else kind.efa) if kind else 0
            if has and resource in resources and node.count(resource) == 0:
                return [_plugin_absent(evidence, resource, node, _lines(pending))]
    return []


def _plugin_absent(evidence: Evidence, resource: str, node: Node | None, lines: list[Line]) -> Finding:
    plugin = _PLUGINS[resource]
    word = "nvidia" if resource == GPU else "efa"
    rows = [ds for ds in evidence.daemon_sets if word in ds.name]
    shown = [*([node.line] if node else []), *(ds.line for ds in rows), *lines]
    tolerated = ("node.kubernetes.io/",) if resource == EFA else ("node.kubernetes.io/", "nvidia.com/gpu")
    taints = [taint for taint in (node.taints if node else []) if not taint.startswith(tolerated)]
    unlabelled = node is not None and node.labels.get("nvidia.com/gpu.present") != "true" and resource == GPU
    where = "runs on no node" if any(ds.desired == 0 for ds in rows) else "does not run there"
    if taints:
        key = taints[0]
        return Finding(
            "schedule/plugin-toleration", f"The {plugin} does not tolerate the taint {key}, so it {where} and the "
                                          "node "
            f"advertises no {resource} at all.",
            f"Add a toleration for {key} to the {plugin}'s DaemonSet (helm value tolerations), and to the other "
            "device plugin's; or taint with the key nvidia.com/gpu, which the NVIDIA plugin tolerates by itself.",
            shown, INFERRED)
    if unlabelled and any(ds.desired == 0 for ds in rows):
        return Finding(
            "schedule/plugin-label", f"The {plugin}'s DaemonSet selects no node (DESIRED 0), because nodes lack "
                                     "the "
            f"label nvidia.com/gpu.present=true, so they advertise no {resource}.",
            "Label the node group nvidia.com/gpu.present=true (Eagle Ray does), or turn on node feature discovery.",
            shown, INFERRED)
    if any(ds.desired == 0 for ds in rows):
        return Finding(
            "schedule/plugin-toleration", f"The {plugin}'s DaemonSet runs on no node (DESIRED 0), so nodes "
                                          "advertise no "
            f"{resource}: it does not tolerate the taint of the GPU nodes (the EFA chart tolerates only "
            "CriticalAddonsOnly by itself), or selects a label that they lack.",
            f"Add a toleration for the GPU nodes' taint (nvidia.com/gpu) to the {plugin}'s DaemonSet, and label "
            "the nodes nvidia.com/gpu.present=true; Eagle Ray does both.", shown, LIKELY)
    state = next((f" ({ds.ready} of {ds.desired} ready)" for ds in rows if ds.ready < ds.desired), "")
    return Finding(
        "schedule/plugin-absent", f"The node advertises no {resource}, although its instance type has it: the "
                                  f"{plugin} "
        f"is not working on it{state}.",
        f"See `kubectl get daemonset,pods -n kube-system -o wide` and the log of the {plugin}'s pod on that node; "
        "it must tolerate the node's taints, and its labels must match.", shown, INFERRED)


def _plugins(evidence: Evidence) -> list[Finding]:
    """A device plugin that wants no node, beside nodes without that device, with no pod's complaint."""
    known = instance_types()
    for resource, word in ((GPU, "nvidia"), (EFA, "efa")):
        rows = [ds for ds in evidence.daemon_sets if word in ds.name]
        nodes = [node for node in evidence.nodes.values() if node.count(resource) == 0
                 and node.conditions.get("Ready", "True") == "True"
                 and (kind := known.get(node.instance_type)) and (kind.gpus if resource == GPU else kind.efa)]
        if nodes or any(ds.desired == 0 for ds in rows):
            return [_plugin_absent(evidence, resource, nodes[0] if nodes else None, [])]
    return []


def _autoscaler(evidence: Evidence, pending: list[Hit], resources: list[str]) -> list[Finding]:
    hits = evidence.grep(("scale", "node group size", "noexpansion", "limit reached"), _NO_SCALE_UP)
    if not hits:
        return []
    text = " ".join(hit.line.text for hit in hits)
    lines = _lines(hits) + _lines(pending)
    if re.search(r"max(?:imum)? node group size reached|max (?:cluster|total) .{0,20}limit", text, re.IGNORECASE):
        return [Finding(
            "schedule/maximum-size", "The autoscaler may add no node: the node group is at its maximum size (or "
                                     "the "
            "cluster at a limit).", "Raise gpu.nodes (the node group's maximum size), or end the job that uses "
                                    "the nodes.",
            lines, STATED)]
    devices = [name for name in (EFA, GPU) if re.search(rf"Insufficient {re.escape(name)}", text)]
    if devices:
        device = devices[0]
        short = "EFA" if device == EFA else "GPU"
        tags = "; ".join(f"k8s.io/cluster-autoscaler/node-template/resources/{name}=N" for name in devices)
        return [Finding(
            "schedule/node-template", "With no node to look at, the cluster autoscaler builds a node-template "
                                      "from the "
            "instance type and the tags of the Auto Scaling group, and nothing tells it that a new node offers "
            f"{device} ({short}), so it thinks the pod would not fit.",
            f"Tag the Auto Scaling group itself: {tags} (with labels and taints as node-template/label/… and "
            "node-template/taint/…). Tags of a managed node group do not reach its Auto Scaling group.",
            lines, INFERRED)]
    if re.search(r"affinity|selector|untolerated taint|taint", text):
        return [Finding(
            "schedule/node-template", "No node group matches the pod in the cluster autoscaler's node-template: "
                                      "from "
            "zero nodes it knows labels and taints only from the tags of the Auto Scaling group.",
            "Tag the Auto Scaling group with k8s.io/cluster-autoscaler/node-template/label/NAME and "
            "…/taint/NAME, "
            "or mend the pod's nodeSelector and tolerations.", lines, LIKELY)]
    return []


def _scheduler_alone(evidence: Evidence, pending: list[Hit], resources: list[str]) -> list[Finding]:
    """What the scheduler's own words allow to say; often that is only what is short."""
    why = pending[-1].match["why"] or ""
    taint = re.search(r"untolerated taint(?:\(s\))? \{?(?P<taint>[^}:,]+)", why)
    if taint and taint["taint"].startswith("node.kubernetes.io/"):
        return [_undecided(pending, f"a node without {taint['taint'].strip()}")]
    if taint and not taint["taint"].startswith(("CriticalAddonsOnly", "node-role.")):
        return [Finding(
            "schedule/taint", f"No node admits the pod: it does not tolerate the taint {taint['taint'].strip()}.",
            f"Add a toleration for {taint['taint'].strip()} to the pod template, or take the taint off the nodes.",
            _lines(pending), STATED)]
    if not resources and re.search(r"Pod's node affinity|node selector|match Pod's", why):
        return [Finding(
            "schedule/selector", "No node has the labels that the pod's nodeSelector or affinity asks for.",
            "Compare `kubectl get nodes --show-labels` with the pod's nodeSelector; mend one of them, or start "
            "the node group that has these labels.", _lines(pending), STATED)]
    if "volume node affinity" in why:
        return []  # said by pods.py
    plain = [name for name in resources if name in ("cpu", "memory", "ephemeral-storage", "pods")]
    if plain and set(resources) <= set(plain):
        return [Finding(
            "schedule/too-large", f"No node has enough free {' and '.join(plain)} for the pod's request.",
            f"Lower the request ({'gpu.worker_cpu, ' if 'cpu' in plain else ''}gpu.worker_memory_gib; system "
            "daemons need a share of the node), use a larger instance type, or end what else runs "
            "there.", _lines(pending), STATED)]
    return [_undecided(pending, " and ".join(resources) or "a node that fits")]


def _undecided(pending: list[Hit], short: str) -> Finding:
    return Finding(
        "symptom/pending", f"Pods are Pending for want of {short}, and nothing here says why there is none.",
        "Collect `kubectl describe nodes` (allocatable, taints, what runs there), `kubectl get daemonset -A`, "
        "events of the autoscaler and the node group's health (`aws eks "
        "describe-nodegroup`).", _lines(pending), SYMPTOM)
