"""Who may speak with whom in the namespace of a Ray cluster: nobody, but for what is named here.

NetworkPolicies add up: what one of them allows is allowed, and a pod that any of them selects may do nothing
else. So a person who needs another way (a file system, a tracker of experiments) adds a policy of their own.

EFA is not IP and passes by all of this: its device and its security group decide who has it. What NCCL and gloo
exchange before and beside it (addresses, the side channel, in a comparison all of it) is TCP on ports of the
moment, hence every port among the pods of one cluster. The kubelet's probes come from the node itself, and
`kubectl port-forward` enters the pod on its node: Kubernetes lets no policy stop either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from constructs import Construct

from k8s.cloudwatch_agent import METRICS_PORT
from k8s.kuberay import OPERATOR_NAMESPACE, OPERATOR_PODS
from k8s.kubernetes_object import KubernetesObject
from k8s.ray_job import SUBMITTER_PODS

_DASHBOARD = [{"protocol": "TCP", "port": 8265}]
_HTTPS = [{"protocol": "TCP", "port": 443}]
_DNS = {
    "to": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
            "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}}}],
    "ports": [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}],
}
# EKS Pod Identity hands out AWS credentials at this address of every node (EKS user guide, pod-id-how-it-works).
_POD_IDENTITY = {
    "to": [{"ipBlock": {"cidr": "169.254.170.23/32"}}],
    "ports": [{"protocol": "TCP", "port": 80}],
}
# S3, other APIs of AWS, the Hugging Face hub. Private addresses are what is inside: other pods, nodes and the
# Kubernetes API, of which Ray's pods want nothing.
_HTTPS_OUTSIDE = {
    "to": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": [
        "10.0.0.0/8", "100.64.0.0/10", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16"]}}],
    "ports": _HTTPS,
}
# EKS gives services, that of the Kubernetes API among them, addresses of the one that the VPC leaves.
SERVICE_RANGES = ("10.100.0.0/16", "172.20.0.0/16")


def network_policies(scope: Construct, *, namespace: str, cluster: str, api_ranges: Sequence[str],
                     scraper: Mapping[str, Any] | None = None) -> None:
    """Add the policies for the RayCluster `cluster` and the jobs that are submitted to it.

    Args:
        api_ranges: where the head, which scales its own cluster, finds the Kubernetes API: the VPC's range and
            SERVICE_RANGES.
        scraper: who reads the metrics of the workers, as a policy names a peer; none: nobody does.
    """
    pods = {"ray.io/cluster": cluster}  # KubeRay's label on head and workers
    head = {**pods, "ray.io/node-type": "head"}
    operator = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": OPERATOR_NAMESPACE}},
                "podSelector": {"matchLabels": OPERATOR_PODS}}

    def policy(name: str, selector: dict[str, Any], **rules: list[dict[str, Any]]) -> None:
        types = [kind.capitalize() for kind in rules]
        KubernetesObject(scope, name, api_version="networking.k8s.io/v1", kind="NetworkPolicy", name=name,
                         namespace=namespace, spec={"podSelector": selector, "policyTypes": types, **rules})

    policy("default-deny", {}, ingress=[], egress=[])
    policy(f"{cluster}-pods", {"matchLabels": pods},
           ingress=[{"from": [_pods(pods)]}],
           egress=[{"to": [_pods(pods)]}, _DNS, _POD_IDENTITY, _HTTPS_OUTSIDE])
    # The operator asks the dashboard how a job is; the submitter uploads the code there, submits and follows.
    policy(f"{cluster}-head", {"matchLabels": head},
           ingress=[{"from": [_pods(SUBMITTER_PODS), operator], "ports": _DASHBOARD}])
    policy(f"{cluster}-autoscaler", {"matchLabels": head},
           egress=[{"to": [{"ipBlock": {"cidr": cidr}} for cidr in api_ranges], "ports": _HTTPS}])
    policy(f"{cluster}-submitter", {"matchLabels": SUBMITTER_PODS},
           egress=[_DNS, {"to": [_pods(head)], "ports": _DASHBOARD}])
    if scraper is not None:
        policy(f"{cluster}-metrics", {"matchLabels": {**pods, "ray.io/node-type": "worker"}},
               ingress=[{"from": [dict(scraper)], "ports": [{"protocol": "TCP", "port": METRICS_PORT}]}])


def _pods(labels: dict[str, str]) -> dict[str, Any]:
    """Pods of the policy's own namespace."""
    return {"podSelector": {"matchLabels": labels}}
