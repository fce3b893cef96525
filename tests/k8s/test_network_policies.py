"""Who reaches whom in the synthesized namespace: every way that the job needs, and no other."""

import cdk8s
import pytest
from lookup import only

from k8s.network_policies import SERVICE_RANGES, network_policies
from k8s.rules.reach import End, may_reach

NAMESPACE, CLUSTER = "ray", "eagleray"
GCS, CLIENT, DASHBOARD, AGENT, ANY = 6379, 10001, 8265, 52365, 40123


def ray(role, address, cluster=CLUSTER, namespace=NAMESPACE):
    """A pod as KubeRay labels it."""
    return End(address, namespace, {"ray.io/cluster": cluster, "ray.io/node-type": role})


HEAD, WORKER, OTHER_WORKER = ray("head", "10.0.1.4"), ray("worker", "10.0.1.5"), ray("worker", "10.0.1.6")
OPERATOR = End("10.0.1.7", "kuberay-operator", {"app.kubernetes.io/name": "kuberay-operator"})
DNS = End("10.0.1.8", "kube-system", {"k8s-app": "kube-dns"})
STRANGER, STRANGER_INSIDE = End("10.0.1.9", "default", {"app": "web"}), End("10.0.1.10", NAMESPACE, {"app": "web"})
IMPOSTOR = ray("worker", "10.0.1.11", namespace="default")
OTHER_CLUSTER = ray("worker", "10.0.1.12", cluster="another")
OTHER_OPERATOR = End("10.0.1.13", "default", OPERATOR.labels)
POD_IDENTITY, METADATA = End("169.254.170.23"), End("169.254.169.254")
S3, PRIVATE, KUBERNETES = End("52.219.140.1"), End("10.0.200.1"), End("172.20.0.1")


@pytest.fixture(scope="module")
def policies(synth_l4):
    return [m for m in synth_l4.manifests if m["kind"] == "NetworkPolicy"]


@pytest.fixture(scope="module")
def submitter(synth_l4):
    template = only(synth_l4.manifests, "RayJob")["spec"]["submitterPodTemplate"]
    return End("10.0.1.20", NAMESPACE, template["metadata"]["labels"])


NEEDED = {
    "a worker finds the GCS": (WORKER, HEAD, GCS),
    "the head reaches its workers' raylets": (HEAD, WORKER, ANY),
    "workers exchange objects, NCCL's addresses and gloo's data": (WORKER, OTHER_WORKER, ANY),
    "and the other way": (OTHER_WORKER, WORKER, ANY),
    "workers talk to the dashboard": (WORKER, HEAD, DASHBOARD),
    "the head's dashboard asks the agents": (HEAD, WORKER, AGENT),
    "the operator asks how the job is": (OPERATOR, HEAD, DASHBOARD),
    "workers resolve names": (WORKER, DNS, 53),
    "workers get AWS credentials": (WORKER, POD_IDENTITY, 80),
    "the head gets AWS credentials": (HEAD, POD_IDENTITY, 80),
    "workers write checkpoints": (WORKER, S3, 443),
    "the head writes the summary": (HEAD, S3, 443),
}
FORBIDDEN = {
    "a stranger, the dashboard": (STRANGER, HEAD, DASHBOARD),
    "a stranger, the GCS": (STRANGER, HEAD, GCS),
    "a stranger, the client port": (STRANGER, HEAD, CLIENT),
    "a stranger, a worker": (STRANGER, WORKER, ANY),
    "a stranger, an agent": (STRANGER, WORKER, AGENT),
    "a pod of the namespace, the dashboard": (STRANGER_INSIDE, HEAD, DASHBOARD),
    "a pod of the namespace, the GCS": (STRANGER_INSIDE, HEAD, GCS),
    "a pod of the namespace, a worker": (STRANGER_INSIDE, WORKER, ANY),
    "a pod of the namespace, the internet": (STRANGER_INSIDE, S3, 443),
    "a pod that calls itself worker elsewhere": (IMPOSTOR, HEAD, GCS),
    "another Ray cluster": (OTHER_CLUSTER, HEAD, GCS),
    "another operator": (OTHER_OPERATOR, HEAD, DASHBOARD),
    "the operator, the GCS": (OPERATOR, HEAD, GCS),
    "the operator, a worker": (OPERATOR, WORKER, ANY),
    "the internet, the dashboard": (S3, HEAD, DASHBOARD),
    "a node or VPN of the VPC, the dashboard": (PRIVATE, HEAD, DASHBOARD),
    "a worker, a stranger": (WORKER, STRANGER, 80),
    "a worker, another cluster": (WORKER, OTHER_CLUSTER, ANY),
    "a worker, the Kubernetes API": (WORKER, KUBERNETES, 443),
    "a worker, the private API endpoint": (WORKER, PRIVATE, 443),
    "a worker, the node's metadata": (WORKER, METADATA, 80),
    "a worker, plain HTTP": (WORKER, S3, 80),
    "a worker, mail": (WORKER, S3, 25),
    "a worker, the operator": (WORKER, OPERATOR, 8080),
    "a worker, DNS over another port": (WORKER, DNS, 9153),
}


@pytest.mark.parametrize("way", NEEDED)
def test_what_the_job_needs_is_open(policies, way):
    assert may_reach(policies, *NEEDED[way])


@pytest.mark.parametrize("way", FORBIDDEN)
def test_everything_else_is_closed(policies, way):
    assert not may_reach(policies, *FORBIDDEN[way])


def test_the_submitter_reaches_the_dashboard_and_dns_alone(policies, submitter):
    assert may_reach(policies, submitter, HEAD, DASHBOARD)
    assert may_reach(policies, submitter, DNS, 53, "UDP")
    for target, port in ((HEAD, GCS), (HEAD, CLIENT), (WORKER, ANY), (S3, 443), (POD_IDENTITY, 80)):
        assert not may_reach(policies, submitter, target, port)
    for source in (STRANGER, STRANGER_INSIDE, HEAD, WORKER, OPERATOR):
        assert not may_reach(policies, source, submitter, ANY)


def test_names_are_resolved_over_both_protocols(policies):
    assert all(may_reach(policies, pod, DNS, 53, protocol) for pod in (HEAD, WORKER) for protocol in ("UDP", "TCP"))
    assert not may_reach(policies, WORKER, S3, 53, "UDP")


def test_policies_follow_the_settings_names(synth):
    manifests = synth("l4", "name=wings,ray.namespace=research").manifests
    policies = [m for m in manifests if m["kind"] == "NetworkPolicy"]
    head, worker = ray("head", "10.0.1.4", "wings", "research"), ray("worker", "10.0.1.5", "wings", "research")
    assert may_reach(policies, worker, head, GCS)
    assert not may_reach(policies, STRANGER, head, DASHBOARD)


def test_policies_are_enforced_and_there_before_the_pods(synth_l4):
    addon = synth_l4.only("ClusterStack", "AWS::EKS::Addon", AddonName="vpc-cni")
    # A text: the add-on's schema refuses true.
    assert addon["ConfigurationValues"] == '{"enableNetworkPolicy":"true"}'
    resources = synth_l4.resources("TrainingStack", "Custom::AWSCDK-EKS-KubernetesResource")
    by_kind = {name: r["Properties"]["Manifest"] for name, r in resources.items()}
    policies = {name for name, text in by_kind.items() if '"kind":"NetworkPolicy"' in str(text)}
    (cluster,) = [name for name, text in by_kind.items() if '"kind":"RayCluster"' in str(text)]
    assert len(policies) == 5
    assert policies <= set(resources[cluster]["DependsOn"])


def test_a_head_that_scales_its_cluster_reaches_the_kubernetes_api_and_no_worker_does():
    chart = cdk8s.Chart(cdk8s.App(), "c")
    network_policies(chart, namespace=NAMESPACE, cluster=CLUSTER, api_ranges=("10.0.0.0/16", *SERVICE_RANGES))
    policies = chart.to_json()
    for api in (KUBERNETES, End("10.100.0.1"), PRIVATE):
        assert may_reach(policies, HEAD, api, 443)
        assert not may_reach(policies, WORKER, api, 443)
        assert not may_reach(policies, HEAD, api, 6443)
    assert not may_reach(policies, HEAD, METADATA, 443)
