"""Stacks and namespaces that cannot be deleted, and what still holds them."""

from __future__ import annotations

import re

from ops.diagnose.evidence import Evidence
from ops.diagnose.finding import INFERRED, LIKELY, STATED, Finding, Signature

_HELD = r"has a dependent object|DependencyViolation|has dependencies and cannot be deleted|" \
        r"has some mapped public address|resource .{0,60}in use by"
_ENI = re.compile(r"(?P<eni>eni-[0-9a-f]+)\W+(?P<status>available|in-use)\W+(?P<what>[^\n]*)")


def findings(evidence: Evidence) -> list[Finding]:
    """Deletion."""
    named = [found for signature in SIGNATURES for found in signature.findings(evidence)]
    return [*_held(evidence), *_bucket(evidence), *named]


def _held(evidence: Evidence) -> list[Finding]:
    hits = evidence.grep(("depend", "mapped public", "in use by"), _HELD)
    if not hits:
        return []
    lines = [hit.line for hit in hits]
    interfaces = evidence.grep("eni-", _ENI) or evidence.grep(
        "eni-", r"(?P<eni>eni-[0-9a-f]{8,})(?P<status>)(?P<what>.*)")
    balancers = [hit for hit in interfaces if re.search(r"\bELB\b", hit.match["what"])] or evidence.grep(
        "loadbalancer", r"arn:aws[\w-]*:elasticloadbalancing\S+")
    left = [hit for hit in interfaces if hit.match["status"] != "in-use" and hit not in balancers]
    if left:
        eni, what = left[0].match["eni"], left[0].match["what"].strip()
        maker = "the VPC CNI" if re.search(r"aws-k8s", what, re.IGNORECASE) else "its maker"
        every = "; ".join("aws ec2 delete-network-interface --network-interface-id "
                          f"{hit.match['eni']}" for hit in left[:5])
        return [Finding(
            "teardown/network-interface", f"A network interface that {maker} left behind ({eni}, "
                                          f"{what or 'not in use'}) still "
            "uses the security group and the subnet, so CloudFormation cannot delete them.",
            f"Run {every}; then delete the stack again. The next time let pods and node groups go (GPU nodes at "
            "zero) before the VPC CNI does.", [*(hit.line for hit in left), *lines], INFERRED)]
    if balancers:
        return [Finding(
            "teardown/load-balancer", "A load balancer that a Service or Ingress made is left in the VPC and uses "
                                      "its subnets and "
            "security group.", "Delete it (`aws elbv2 delete-load-balancer`; `aws elb` for a classic one), then "
                               "delete the stack "
            "again. The next time delete Services and Ingresses before the cluster.",
            [*(hit.line for hit in balancers), *lines], INFERRED)]
    return [Finding(
        "teardown/held", "Something that CloudFormation did not make still uses the security group or subnet: a "
                         "network interface "
        "or load balancer that the cluster's controllers left.",
        "Find it with `aws ec2 describe-network-interfaces --filters Name=group-id,Values=SG` (or "
        "Name=subnet-id), delete it (`aws ec2 delete-network-interface`), then delete the stack "
        "again.", lines, LIKELY)]


def _bucket(evidence: Evidence) -> list[Finding]:
    hits = evidence.grep("not empty", r"bucket[^\n]*(?:is )?not empty|BucketNotEmpty")
    return [Finding(
        "teardown/bucket-not-empty", "The bucket is not empty, so it cannot be deleted.",
        "Keep it (Eagle Ray retains its results bucket), or empty it with all versions (`aws s3 rb --force`; "
        "versions by a lifecycle rule) and delete again.", [hit.line for hit in hits], STATED)] if hits else []


SIGNATURES = (
    Signature(
        "teardown/finalizer", ("finalizer",),
        r"(?:has finalizers remaining|finalizers? (?:remaining|blocking)|waiting (?:on|for) finalizers?|"
        r"SomeFinalizersRemain)[^\n]*",
        "Deletion waits for a finalizer whose controller no longer runs: the operator was removed before its "
        "RayJobs and RayClusters.",
        "Start the operator again (`cdk deploy PlatformStack`) so that it clears them, or, if it is gone for "
        "good, take the finalizer off (`kubectl patch rayjob NAME --type merge -p "
        "'{{\"metadata\":{{\"finalizers\":[]}}}}'`). `cdk destroy --all` goes in the right "
        "order.", confidence=STATED),
    Signature(
        "teardown/eviction-blocked", ("disruption budget", "podevictionfailure", "evict pods"),
        r"violate the pod's disruption budget|PodEvictionFailure|max retries while trying to evict",
        "Nodes cannot be drained: a PodDisruptionBudget, or a pod that nothing restarts, blocks the eviction of "
        "pods.",
        "Delete the job and its pods (or that PodDisruptionBudget: `kubectl get pdb -A`), then repeat it; a node "
        "group can be updated with force."),
    Signature(
        "teardown/cluster-unreachable", ("unable to connect to the server", "kubernetes cluster unreachable",
                                         "uninstall"),
        r"(?:delete|DELETE|uninstall)[^\n]*(?:Kubernetes cluster unreachable|Unable to connect to the server|"
        r"You must be logged in|Unauthorized)",
        "A Kubernetes manifest or helm chart cannot be deleted: the kubectl provider no longer reaches the "
        "cluster, or lost its access.",
        "Delete the stack again and retain that resource (`aws cloudformation delete-stack --retain-resources`): "
        "it goes with the cluster."),
)
