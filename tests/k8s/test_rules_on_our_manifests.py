"""Our own manifests: nothing to find in them, and whatever is broken in them is found."""

import copy
import re

import pytest
from rule_cases import KUBERAY, OTHERS

from k8s.rules import RULES, Manifest, check
from k8s.rules.nodes import around_app
from tests.breaking import broken, leaves, put

# Leaves that may be other than they are, and why. `-` before a path: it may be left out.
FREE = {
    "a name is a name, and what refers to it is looked at": r"metadata\.name|-metadata\.namespace",
    "the default is the same, or as good": r"-.*(updateStrategy\.type|imagePullPolicy|terminationMessagePolicy"
        r"|serviceType|dashboard-host|submissionMode|entrypointNumCpus|Replicas|replicas|hostPath\.type|runAsUser"
        r"|ports\[\d\]\.protocol|policyTypes\[0\]"
        r"|runAsNonRoot|submitterPodTemplate\.spec\.restartPolicy)",
    "taken from the limits": r"-.*(num-gpus|resources\.requests\..*)",
    "it lies on the system node, which has room": r"-spec\.submitterPodTemplate.*limits.*",
    "the account itself says false": r"-.*automountServiceAccountToken",
    "the pods themselves say false": r"automountServiceAccountToken",
    "held by tests/stacks/test_platform_stack.py: a namespace may enforce nothing":
        r"-metadata\.labels\.pod-security\|kubernetes\|io/enforce",
    "room that nothing asks for": r".*maxReplicas",
    "any number is right; without one, Ray's own": r".*minReplicas|-?.*idleTimeoutSeconds|-?.*expirationSeconds"
        r"|-?.*autoscalerOptions\.env\[0\]\.(name|value).*|-.*autoscalerOptions\.resources\.limits\..*",
    "it may be another one's, which a volume waits for": r"-.*projected\.sources\[\d\]\.configMap\.name",
    "read by people only": r".*containers\[0\]\.name|.*groupName|-?.*ports\[\d\]\.(name|containerPort)"
        r"|-?metadata\.annotations\.eagleray-ends-by",
    "tolerates more, or an add-on's taint that our nodes lack": r"-.*tolerations\[\d\]\.(key|operator|effect)"
        r"|.*tolerations\[0\]\.key=CriticalAddonsOnly",
    "the makers of the plugins chose it": r"-?spec\.template\.spec\.(automountServiceAccountToken|hostNetwork"
        r"|containers\[0\]\.(image|securityContext\.(allowPrivilegeEscalation|capabilities.*)))(=.*)?",
    "any value of its kind": r".*preRunningDeadlineSeconds|-?.*terminationGracePeriodSeconds|spec\.rayVersion"
        r"|.*env\[\d+\]\.value=/tmp/nccl.*|spec\.entrypoint|-?.*preStop\.exec\.command.*|-?.*readOnly",
    "slower, not broken": r"-?.*env\[\d+\]\.(name=)?.*(TORCHINDUCTOR_CACHE_DIR|TRITON_CACHE_DIR|HF_HOME"
        r"|NCCL_SHM_USE_CUDA_MEMCPY|NVIDIA_DRIVER_CAPABILITIES|=/cache.*|=1|=compute,utility)",
    "lost with the pod, not broken": r".*mountPath=/(tmp/ray|cache)",
    "for Neuron, which no node of ours has": r".*=/opt/aws/neuron",
    "the only head in the namespace": r"-spec\.podSelector\.matchLabels\.ray\|io/cluster",
    "less time to save before a node goes, not broken": r"-?.*env\[\d+\]\.(name|value)RAY_GRACEFUL_SHUTDOWN_.*",
    "private, not broken": r"-?.*env\[\d+\]\.(name|value)RAY_USAGE_STATS_ENABLED",
    "the image's default is the same": r".*name=NVIDIA_VISIBLE_DEVICES",
}


def rules_broken(bodies, around):
    return {finding.rule for finding in check([Manifest(body) for body in bodies], around)}


@pytest.fixture(scope="module")
def ours(synth_l4):
    """Our manifests (of the code only its keys, which is all that rules read) and what surrounds them."""
    bodies = copy.deepcopy(synth_l4.manifests)
    for body in bodies:
        if body["kind"] == "ConfigMap":
            body["data"] = dict.fromkeys(body["data"], "")
    return bodies, around_app(synth_l4.outdir)


@pytest.mark.parametrize("config", ["l4", "h100", "capacity-block", "reserved", "local"])
def test_nothing_is_wrong_with_our_own(synth, config):
    app = synth(config)
    found = check([Manifest(body) for body in app.manifests], around_app(app.outdir))
    assert [str(finding) for finding in found] == []


def test_nothing_is_wrong_with_them_as_loose_files(synth_l4):
    from k8s.rules.nodes import around_files

    assert rules_broken(synth_l4.manifests, around_files()) == set()


@pytest.mark.parametrize("kind", ["RayJob", "RayCluster", "DaemonSet", "NetworkPolicy", "Namespace",
                                  "ServiceAccount"])
def test_whatever_is_changed_or_left_out_is_noticed_unless_it_is_free(ours, kind):
    bodies, around = ours
    free = [re.compile(pattern) for pattern in FREE.values()]
    unnoticed, used = [], set()
    for i, body in enumerate(bodies):
        for path, value in leaves(body) if body["kind"] == kind else []:
            if ".items[" in path:  # a hundred alike, looked at by the case of a code's key below
                continue
            for change, label in ((broken(value), f"{path}={value}"), (None, f"-{path}")):
                if rules_broken([*bodies[:i], put(body, path, change), *bodies[i + 1:]], around):
                    continue
                name = next((e["name"] for e in [value_at(body, path)] if e), "")
                matching = [p for p in free if any(p.fullmatch(text) for text in (
                    label, label.split("=")[0], f"{label.split('=')[0]}{name}"))]
                used |= set(matching)
                if not matching:
                    unnoticed.append(f"{label} {name}")
    assert unnoticed == []


def value_at(body, path):
    """The env entry that a path leads into, or nothing."""
    found = re.match(r"(.*\.env\[\d+\])\.", path)
    where = body
    for index, key in re.findall(r"\[(\d+)\]|([^.\[\]]+)", found[1]) if found else []:
        where = where[int(index)] if index else where[key]
    return where if found else None


_GPU_POD = "spec.workerGroupSpecs[0].template.spec"
_WORKER = f"{_GPU_POD}.containers[0]"
_HEAD_POD = "spec.headGroupSpec.template.spec"
_API = f"{_HEAD_POD}.volumes[1].projected"
_SUBMITTER = "spec.submitterPodTemplate.spec"
_CODE = f"{_SUBMITTER}.volumes[0].projected"
_EIGHT = dict.fromkeys(["nvidia.com/gpu"], "2") | {"vpc.amazonaws.com/efa": "1", "cpu": "20", "memory": "80Gi"}

# Where the sweep cannot go: several values at once, or one that is wrong in a way of its own.
MUTATIONS = [
    ("node-fit", "RayCluster",
     {f"{_WORKER}.resources.limits.cpu": "48", f"{_WORKER}.resources.requests.cpu": "48"}),
    ("node-fit", "RayCluster", {f"{_WORKER}.resources.limits.memory": "192Gi",
                                f"{_WORKER}.resources.requests.memory": "192Gi"}),
    ("node-fit", "RayCluster", {f"{_WORKER}.resources.limits.nvidia|com/gpu": "8",
                                f"{_WORKER}.resources.requests.nvidia|com/gpu": "8"}),
    ("node-fit", "RayCluster", {f"{_HEAD_POD}.containers[0].resources.requests.memory": "16Gi",
                                f"{_HEAD_POD}.containers[0].resources.limits.memory": "16Gi"}),
    ("node-match", "RayCluster", {f"{_GPU_POD}.tolerations": []}),
    ("node-match", "RayCluster", {f"{_GPU_POD}.tolerations[0].effect": "NoExecute"}),
    ("node-match", "RayCluster", {f"{_GPU_POD}.nodeSelector": {"accelerator": "l4"}}),
    ("node-match", "DaemonSet", {"spec.template.spec.nodeSelector": {"nvidia.com/gpu.present": "yes"}}),
    ("node-match", "DaemonSet", {"spec.template.spec.tolerations": []}),
    ("plugin-toleration", "DaemonSet", {"spec.template.spec.tolerations": []}),
    ("plugin-nodes", "DaemonSet", {"spec.template.spec.nodeSelector": {}}),
    ("plugin-priority", "DaemonSet", {"spec.template.spec.priorityClassName": None}),
    ("plugin-access", "DaemonSet", {"spec.template.spec.volumes[0].hostPath.path": "/tmp"}),
    ("plugin-missing", "DaemonSet", {"spec.template.spec.containers[0].image": "pause:3"}),
    ("node-room", "RayCluster", {"spec.workerGroupSpecs[0].maxReplicas": 3}),
    ("autoscaler-access", "RayCluster", {"spec.autoscalerOptions.volumeMounts": None}),
    ("autoscaler-access", "RayCluster", {"spec.autoscalerOptions.volumeMounts[0].mountPath": "/token"}),
    ("autoscaler-access", "RayCluster", {f"{_API}.sources[0].serviceAccountToken.path": "t"}),
    ("autoscaler-access", "RayCluster", {f"{_API}.sources[1].configMap": None}),
    ("autoscaler-gang", "RayCluster", {"spec.autoscalerOptions.version": "v1"}),
    ("autoscaler-gang", "RayCluster", {"spec.autoscalerOptions": None}),
    ("autoscaler-gang", "RayCluster", {"spec.enableInTreeAutoscaling": None}),
    ("autoscaler-number", "RayCluster", {"spec.workerGroupSpecs[0].replicas": 2}),
    ("autoscaler-container", "RayCluster", {"spec.autoscalerOptions.resources.requests.memory": "2Gi"}),
    ("autoscaler-container", "RayCluster", {"spec.autoscalerOptions.resources.limits.cpu": "half"}),
    ("autoscaler-container", "RayCluster", {"spec.autoscalerOptions.securityContext": None}),
    ("autoscaler-idle", "RayCluster", {"spec.autoscalerOptions.idleTimeoutSeconds": 5}),
    ("efa-share", "RayCluster", {f"{_WORKER}.resources": {"requests": _EIGHT, "limits": _EIGHT},
                                 "spec.workerGroupSpecs[0].rayStartParams.num-gpus": "2"}),
    ("efa-device", "RayCluster", {f"{_WORKER}.resources.limits.vpc|amazonaws|com/efa": None,
                                  f"{_WORKER}.resources.requests.vpc|amazonaws|com/efa": None}),
    ("tcp-door", "RayCluster", {f"{_WORKER}.env": [{"name": "NCCL_NET", "value": "Socket"}]}),
    ("tcp-door", "RayCluster", {f"{_WORKER}.env": []}),
    ("tcp-door", "RayJob", {"spec.runtimeEnvYAML": "env_vars: {FI_PROVIDER: tcp}"}),
    ("tcp-door", "RayJob", {"spec.runtimeEnvYAML": "env_vars: {NCCL_NET_PLUGIN: none}"}),
    ("wire-proof", "RayCluster", {f"{_WORKER}.env": [{"name": "NCCL_DEBUG", "value": "WARN"}]}),
    ("socket-interface", "RayCluster", {f"{_WORKER}.env": [{"name": "NCCL_SOCKET_IFNAME", "value": "^lo,docker"}]}),
    ("aws-region", "RayCluster", {f"{_HEAD_POD}.containers[0].env[0].value": ""}),
    ("huge-pages", "RayCluster", {f"{_WORKER}.resources.limits.hugepages-2Mi": "5120Mi",
                                  f"{_WORKER}.resources.requests.hugepages-2Mi": "5120Mi"}),
    ("shared-memory", "RayCluster", {f"{_WORKER}.volumeMounts[1].mountPath": "/dev/shm"}),
    ("head-work", "RayCluster", {"spec.headGroupSpec.rayStartParams.num-cpus": "2"}),
    ("head-work", "RayCluster", {f"{_HEAD_POD}.containers[0].env": []}),
    ("memory-limit", "RayCluster", {f"{_WORKER}.resources.limits.memory": None}),
    ("ray-token", "RayCluster", {"spec.authOptions": None}),
    ("ray-token", "RayCluster", {"spec.authOptions.mode": "disabled"}),
    ("network-reach", "NetworkPolicy", {"spec.podSelector.matchLabels": {"app": "other"}}),
    ("network-reach", "RayJob", {f"{_SUBMITTER[:-5]}.metadata": None}),
    ("standing-cluster", "RayCluster", {"spec.upgradeStrategy": None}),
    ("ray-account", "RayCluster", {f"{_HEAD_POD}.serviceAccountName": None}),
    ("ray-image", "RayCluster", {f"{_WORKER}.image": "public.ecr.aws/deep-learning-containers/ray:other"}),
    ("ray-image", "RayJob", {f"{_SUBMITTER}.containers[0].image": "other"}),
    ("ray-power", "RayCluster", {f"{_WORKER}.securityContext": {"privileged": True}}),
    ("ray-power", "RayCluster", {f"{_HEAD_POD}.automountServiceAccountToken": True}),
    ("ray-confinement", "RayCluster", {f"{_GPU_POD}.securityContext": None}),
    ("ray-confinement", "RayCluster", {f"{_GPU_POD}.securityContext.seccompProfile.type": "Unconfined"}),
    ("ray-confinement", "RayCluster", {f"{_HEAD_POD}.containers[0].securityContext.capabilities": None}),
    ("ray-confinement", "RayJob", {f"{_SUBMITTER}.containers[0].securityContext.capabilities.drop": ["NET_RAW"]}),
    ("pod-security", "RayCluster", {f"{_GPU_POD}.volumes[0]": {"name": "ray-logs", "hostPath": {"path": "/"}}}),
    ("pod-security", "RayCluster", {f"{_GPU_POD}.hostNetwork": True}),
    ("job-end", "RayJob", {"spec.preRunningDeadlineSeconds": None}),
    ("job-end", "RayJob", {"spec.activeDeadlineSeconds": None}),
    ("job-end", "RayJob", {f"{_SUBMITTER}.containers[0].lifecycle": None}),
    ("job-end", "RayJob", {f"{_SUBMITTER}.activeDeadlineSeconds": 60}),
    ("job-once", "RayJob", {"spec.submitterConfig": None}),
    ("job-once", "RayJob", {f"{_SUBMITTER}.restartPolicy": "OnFailure"}),
    ("job-driver", "RayJob", {"spec.entrypointNumCpus": 1}),
    ("working-dir", "RayJob", {f"{_SUBMITTER}.containers[0].volumeMounts[0].mountPath": "/code"}),
    ("working-dir", "RayJob", {"spec.runtimeEnvYAML": "env_vars: {}"}),
    ("own-nccl", "RayJob", {"spec.runtimeEnvYAML": "pip: [torch==2.9.0]"}),
    ("reference", "RayJob", {f"{_CODE}.sources[0].configMap.name": "yesterday"}),
    ("reference-key", "RayJob", {f"{_CODE}.sources[0].configMap.items[0].key": "nothing"}),
    ("selected-cluster", "RayJob", {"spec.clusterSelector.ray|io/cluster": "eagelray"}),
    ("watched", "RayJob", {"metadata.namespace": "default"}),
    ("immutable-code", "ConfigMap", {"immutable": None}),
    ("namespace", "Namespace", {"metadata.name": "rya"}),
    ("dashboard-open", "RayCluster", {"spec.headGroupSpec.serviceType": "LoadBalancer"}),
]


@pytest.mark.parametrize(("rule", "kind", "changes"), MUTATIONS)
def test_a_break_in_our_manifests_is_named_by_its_rule(ours, rule, kind, changes):
    bodies, around = ours
    # Of several DaemonSets or Namespaces the last is EFA's, and Ray's.
    i = max(i for i, body in enumerate(bodies) if body["kind"] == kind)
    changed = bodies[i]
    for path, value in changes.items():
        changed = put(changed, path, value)
    assert rule in rules_broken([*bodies[:i], changed, *bodies[i + 1:]], around)


def test_every_rule_has_a_manifest_that_breaks_it():
    cases = {rule for rule, _ in (KUBERAY | OTHERS).values()} | {rule for rule, _, _ in MUTATIONS}
    # A repeated key is gone once a file is read: tests/ops/test_check.py.
    assert set(RULES) - cases == {"repeated-key"}
    assert cases <= set(RULES)
