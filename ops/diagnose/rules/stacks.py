"""CloudFormation: the first resource that failed of itself, and why; what the AWS CLI and CDK refuse."""

from __future__ import annotations

import re

from ops.diagnose.evidence import Evidence, StackEvent
from ops.diagnose.finding import INFERRED, LIKELY, STATED, Finding, Signature

_ECHO = re.compile(r"(?:creation|update|deletion) cancell?ed|resource\(s\) failed|Rollback "
                   r"requested", re.IGNORECASE)
_HELM_LOCK = (r"another operation \(?install/upgrade/rollback\)? is in progress|\bpending-(?:install|upgrade|"
              r"rollback)\b|another operation .{0,40}in progress")
_LAMBDA_TIME = r"Task timed out after (?P<seconds>\d+)|Sandbox\.Timedout|timed out waiting for the condition|" \
               r"context deadline exceeded"


def findings(evidence: Evidence) -> list[Finding]:
    """What a stack failed of."""
    named = [found for signature in SIGNATURES for found in signature.findings(evidence)]
    return [*_helm(evidence), *named, *_first_failure(evidence)]


def failures(evidence: Evidence) -> list[StackEvent]:
    """Resources that failed of themselves, in order: no cancellations, no stack that only sums up."""
    failed = [event for event in evidence.stack_events if event.status.endswith("FAILED")
              and not _ECHO.search(event.reason) and event.type != "AWS::CloudFormation::Stack"]
    dated = [(event.line.moment, event) for event in failed]
    if len(failed) > 1 and all(moment for moment, _ in dated):
        first = dated[0][0]
        assert first is not None
        failed = [event for _, event in sorted(dated, key=lambda pair: (
            pair[0].minutes_after(first) or 0) if pair[0] else 0)]
    return failed


def _helm(evidence: Evidence) -> list[Finding]:
    locked = evidence.grep(("another operation", "pending-"), _HELM_LOCK)
    timed = [hit for hit in evidence.grep(("timed", "deadline"), _LAMBDA_TIME)
             if re.search(r"helm|kubectl|custom resource|Sandbox|Custom::", hit.line.raw, re.IGNORECASE)]
    if not locked and not timed:
        return []
    lines = [hit.line for hit in timed + locked]
    mend = ("Run `helm rollback` (or delete the newest secret sh.helm.release.v1.… in pending-upgrade or "
            "pending-install), then `aws cloudformation continue-update-rollback` and deploy again. In CDK give "
            "the chart a timeout under 15 minutes (10), and wait=False or atomic=True, so that pods that wait for "
            "nodes do not hold the deployment.")
    if locked and timed:
        cause = ("The kubectl provider's Lambda reached its 15-minute limit while helm was waiting for the "
                 "chart's pods, which cut helm off and left the release pending: every later try, the rollback "
                 "too, meets helm's lock.")
        return [Finding("stack/helm-pending", cause, mend, lines, STATED)]
    if locked:
        cause = ("The helm release is left in a pending state by an operation that was cut off, and helm's lock "
                 "refuses every further one.")
        return [Finding("stack/helm-pending", cause, mend, lines, STATED)]
    cause = ("The helm chart's pods did not become ready in the time that helm waits (the kubectl provider's "
             "Lambda ends after 15 minutes), which may leave the release pending.")
    return [Finding("stack/helm-timeout", cause, f"See why its pods are not ready (`kubectl get pods -A`, "
                    f"`kubectl describe pod`). {mend}", lines, INFERRED)]


def _first_failure(evidence: Evidence) -> list[Finding]:
    failed = failures(evidence)
    if not failed or failed[0].status.startswith("DELETE"):
        return []
    first = failed[0]
    reason = re.sub(r"\s*\(RequestToken.*|\s*\(Service:.*", "", first.reason)[-400:].strip()
    return [Finding(
        "stack/resource-failed", f"{first.resource} ({first.type}) was the first resource that failed: {reason}",
        "Mend what that reason says, then `cdk deploy` again; resources that were cancelled or rolled back after "
        "it need nothing of their own.", [event.line for event in failed], LIKELY)]


SIGNATURES = (
    Signature(
        "stack/not-bootstrapped", ("bootstrap",),
        r"cdk-bootstrap/\w+/version not found|has the environment been bootstrapped|requires bootstrap stack "
        r"version",
        "The account and region are not bootstrapped for the CDK, or with an older version.",
        "Run `cdk bootstrap` for this account and region once, then deploy again."),
    Signature(
        "stack/credentials", ("expired", "credentials", "invalidclienttokenid", "security token"),
        r"ExpiredToken|security token included in the request is (?:expired|invalid)|InvalidClientTokenId|"
        r"Unable to locate credentials|Need to perform AWS calls .{0,60}no credentials|SSO session .{0,40}expired|"
        r"Token has expired",
        "The AWS credentials are missing, expired or not valid: AWS was asked nothing.",
        "Sign in (`aws sso login` or `aws configure`; AWS_PROFILE names the profile) and repeat the command."),
    Signature(
        "stack/helm-name-in-use", ("cannot re-use a name",), r"cannot re-use a name that is still in use",
        "An earlier helm install failed halfway and left a release of that name.",
        "`helm uninstall` that release (`helm list -A -a` shows it), then deploy again; atomic=True with a short "
        "timeout removes such a release by itself."),
    Signature(
        "stack/custom-resource-silent", ("did not receive a response", "timed out while waiting for a response",
                                         "failed to stabilize"),
        r"did not receive a response from your custom resource|Custom.{0,80}(?:failed to stabilize|timed out "
        r"waiting)",
        "A custom resource's Lambda never answered CloudFormation: it crashed, or has no way out of its subnet "
        "(NAT or endpoints).",
        "Read the Lambda's log group; give its subnet a NAT gateway or endpoints, and set service_timeout, so "
        "that it fails in minutes instead of an hour."),
    Signature(
        "stack/nodes-did-not-join", ("nodecreationfailure", "failed to join"),
        r"NodeCreationFailure|Instances failed to join the kubernetes cluster|unhealthy nodes in the kubernetes "
        r"cluster",
        "The node group's instances started and did not join the cluster: no route to the API server and ECR (NAT, "
        "endpoints), a security group without the cluster's, or a wrong node role or user data.",
        "Look into one instance (`aws ec2 get-console-output`, journalctl -u kubelet through SSM): name the "
        "cluster's security group in NetworkInterfaces[].Groups, give the subnet a NAT route, and check the node "
        "role's access entry. Before that see whether a node is NotReady for its CNI.", INFERRED),
    Signature(
        "stack/network-card-index", ("network card", "networkcardindex", "deviceindex", "device index",
                                     "interface type"),
        r"(?:invalid|not (?:valid|supported)|exceed\w*|duplicate|unsupported)[^\n]{0,80}(?:network ?card|device) "
        r"?index|(?:network ?card|device) ?index[^\n]{0,80}(?:invalid|not (?:valid|supported)|exceed|out of range|"
        r"already)|(?:does not support|unsupported|invalid)[^\n]{0,60}(?:interface type|network interface|efa)",
        "The launch template lays out network interfaces as the instance type has none: wrong network card index, "
        "device index or EFA interface type.",
        "Derive them from the instance type, as TrainingCluster does: card 0 has device index 0, each further card "
        "device index 1, the primary one is `efa` (never efa-only)."),
    Signature(
        "stack/egress-ignored", ("egress",), r"Ignoring Egress rule since|ipv4IgnoreEgressRule",
        "CDK dropped an egress rule, because the security group was made with allow_all_outbound (the default): "
        "EFA then lacks the outbound rule to the security group itself, which 0.0.0.0/0 does not cover.",
        "Make the group with allow_all_outbound=False and add both rules (0.0.0.0/0 and the group itself), as "
        "EfaSecurityGroup does."),
    Signature(
        "stack/access-denied", ("denied", "not authorized", "unauthorizedoperation"),
        r"(?:AccessDenied\w*|UnauthorizedOperation|is not authorized to perform:? ?(?P<action>[\w-]+:\w+)?)",
        "AWS refused the call: the role lacks the permission {action}.",
        "Allow the role {action}; `eagleray preflight` lists what a deployment needs.",
        unless=r"S3|s3:|GetObject|PutObject|HeadObject|ListBucket|huggingface|ecr:|registry|"
               r"pull", confidence=INFERRED,
        default={"action": "that the line names"}),
    Signature(
        "stack/export-in-use", ("export",), r"Export \S+ cannot be (?:deleted|updated) as it is in use by "
                                            r"(?P<by>[\w-]+)",
        "Another stack ({by}) still imports an export of this one.",
        "Delete or deploy the importing stack first: `cdk destroy --all` goes in the right order."),
    Signature(
        "stack/stuck-state", ("rollback_complete", "rollback_failed", "_in_progress state"),
        r"is in (?P<state>\w*(?:ROLLBACK_COMPLETE|ROLLBACK_FAILED|IN_PROGRESS)) state and can ?not be updated",
        "The stack is in state {state}, which takes no further update.",
        "After ROLLBACK_COMPLETE delete the stack and deploy again; after UPDATE_ROLLBACK_FAILED run `aws "
        "cloudformation continue-update-rollback`; during IN_PROGRESS wait. What failed before stands in its "
        "events."),
    Signature(
        "stack/name-taken", ("already exists",),
        r"(?:(?P<name>[\w./-]+) already exists|AlreadyExists\w*)", "A resource of that name exists already "
                                                                   "({name}): "
        "left by an earlier deployment, or made by hand.",
        "Delete or rename the one that is there (a retained bucket or log group, for example), then deploy again.",
        unless=r"ray|pod|configmap|checkpoint|file exists|warning|INFO", confidence=INFERRED,
        default={"name": "see the line"}),
    Signature(
        "stack/eks-version", ("kubernetes version",),
        r"unsupported Kubernetes version|Kubernetes version .{0,40}(?:is not supported|no longer supported|"
        r"deprecated)",
        "EKS does not offer that Kubernetes version any more.",
        "Set cluster.version to one in standard support; `eagleray preflight` lists them."),
    Signature(
        "stack/instance-profile", ("iaminstanceprofile", "subnetid", "securitygroupids"),
        r"(?:Launch template|NetworkInterfaces?)[^\n]{0,120}(?:should not|cannot|may not|must not)[^\n]{0,80}",
        "The launch template holds a field that a managed node group does not allow, or security groups beside "
        "network interfaces.",
        "Take SubnetId and IamInstanceProfile out of it, and put security groups (the cluster's too) into "
        "NetworkInterfaces[].Groups.", INFERRED),
)
