"""cdk-nag's AwsSolutions rules, and what of their findings is meant to be, with the reason."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

import aws_cdk as cdk
import jsii
from cdk_nag import AwsSolutionsChecks


@dataclass(frozen=True)
class Acknowledged:
    """Findings that are meant to be: patterns of the construct's path and of cdk-nag's id, and why.

    Not `Validations.acknowledge`: cdk-nag takes whole ids there, and those hold region, cluster name and
    logical ids. In a pattern `*` is any text, and brackets stand for themselves.
    """

    construct: str
    finding: str
    reason: str

    def covers(self, construct: str, finding: str) -> bool:
        return (fnmatchcase(construct, self.construct)
                and fnmatchcase(finding.replace("[", "("), self.finding.replace("[", "(")))


_CDKS_OWN = "roles of the CDK's own Lambdas, which an app cannot give other policies; "

ACKNOWLEDGED = (
    Acknowledged("NetworkStack/Gate/Role/*", "AwsSolutions-IAM5[Resource::*]",
                 "the gate asks what there is: Describe and List actions of EC2 and quotas know no resources"),
    Acknowledged("NetworkStack/Gate/Role/*", "AwsSolutions-IAM5[Resource::arn:*:capacity-reservation/*]",
                 "a reservation has no id before the gate makes it"),
    Acknowledged("NetworkStack/Gate/Function/*", "AwsSolutions-L1",
                 "AWS supports Python 3.13, and the gate needs nothing of a newer one"),
    Acknowledged("ClusterStack/ControlPlane/Cluster/KubectlProvider/*", "AwsSolutions-L1",
                 "the CDK chooses the runtime of its kubectl Lambda"),
    Acknowledged("ClusterStack/ControlPlane/Cluster/Role/*", "AwsSolutions-IAM4[*AmazonEKSClusterPolicy]",
                 "what EKS's control plane needs is AWS's to say, and changes with its versions"),
    Acknowledged("ClusterStack/ControlPlane/Cluster/KubectlProvider/*", "AwsSolutions-IAM4[*",
                 _CDKS_OWN + "they write logs, run in the VPC and read images"),
    Acknowledged("ClusterStack/ControlPlane/Cluster/KubectlProvider/Provider/*", "AwsSolutions-IAM5[*.Arn>:*]",
                 "every version of the one Lambda that this one calls"),
    Acknowledged("ClusterStack/AWS*/ServiceRole/*", "AwsSolutions-IAM4[*AWSLambdaBasicExecutionRole]",
                 _CDKS_OWN + "it writes logs"),
    Acknowledged("ClusterStack/*/Nodegroup/NodeGroupRole/*", "AwsSolutions-IAM4[*",
                 "the policies that EKS asks of a node's role; pods cannot take it (rule node-metadata)"),
    Acknowledged("ClusterStack/Gpu/ScalingGroup/*", "AwsSolutions-IAM5[*",
                 "EKS chooses the ids of nodegroup and Auto Scaling group; their names are held to this cluster's"),
    Acknowledged("PlatformStack/AutoscalerIdentity/*", "AwsSolutions-IAM5[*",
                 "the autoscaler reads all groups to find its own; what changes them is held to its cluster's tag"),
    Acknowledged("PlatformStack/Observability/Identity/*", "AwsSolutions-IAM4[*CloudWatchAgentServerPolicy]",
                 "what the agents of CloudWatch need is AWS's to say, and changes with their versions"),
    Acknowledged("TrainingStack/Storage/*", "AwsSolutions-S1",
                 "the app gives the bucket to the job's role alone; a log of each request tells little more"),
    Acknowledged("TrainingStack/Identity/*", "AwsSolutions-IAM5[*/runs/*",
                 "the job chooses the names of the objects that it writes; the prefix is all that it may reach"),
)


class AwsSolutions(AwsSolutionsChecks):
    """AwsSolutions without what is acknowledged.

    Attributes:
        used: the acknowledgements that something was found for.
    """

    def __init__(self, app: cdk.App) -> None:
        super().__init__(app)
        self.used: set[Acknowledged] = set()

    @jsii.member(jsii_name="validate")
    def validate(self, context: cdk.IPolicyValidationContext) -> cdk.PolicyValidationPluginReport:
        violations = []
        for found in super().validate(context).violations:
            places = [place for place in found.violating_resources
                      if not self._acknowledged(found.rule_name, place)]
            if places:
                violations.append(cdk.PolicyViolation(
                    rule_name=found.rule_name, severity=found.severity, violating_resources=places,
                    description=f"{found.rule_name}  {places[0].construct_path}: {found.description}"))
        return cdk.PolicyValidationPluginReport(success=not violations, violations=violations)

    def _acknowledged(self, finding: str, place: cdk.PolicyViolatingResource) -> bool:
        covering = [one for one in ACKNOWLEDGED if one.covers(str(place.construct_path), finding)]
        self.used.update(covering)
        return bool(covering)
