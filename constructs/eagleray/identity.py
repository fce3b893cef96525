"""AWS permissions for one Kubernetes service account, by EKS Pod Identity."""

from __future__ import annotations

from typing import Any

from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_iam as iam
from constructs import Construct


class PodIdentityRole(Construct):
    """A role that only the pods of one service account can take, and that starts with no permissions.

    `PodIdentityRole(self, "Training", cluster_name=cluster.cluster_name, namespace="ray",
    service_account="training")`, then `bucket.grant_read_write(identity.role)`. The cluster needs the add-on
    eks-pod-identity-agent; the service account itself is an ordinary one, without annotations, and pods
    that started before the association must be restarted to see the credentials.

    Attributes:
        role: the IAM role.
        association: the AWS::EKS::PodIdentityAssociation; let the pods' manifests depend on it.
    """

    def __init__(self, scope: Construct, construct_id: str, *, cluster_name: str, namespace: str,
                 service_account: str) -> None:
        super().__init__(scope, construct_id)
        # EKS puts these tags on every session, so the role is of no use to any other service account, even
        # to someone who may create associations. Source: EKS user guide, pod-id-role.
        pods: Any = iam.ServicePrincipal("pods.eks.amazonaws.com", conditions={"StringEquals": {
            "aws:RequestTag/eks-cluster-name": cluster_name,
            "aws:RequestTag/kubernetes-namespace": namespace,
            "aws:RequestTag/kubernetes-service-account": service_account,
        }})
        self.role = iam.Role(self, "Role", assumed_by=iam.SessionTagsPrincipal(pods),
                             description=f"Pods of service account {namespace}/{service_account}")
        self.association = eks.CfnPodIdentityAssociation(
            self, "Association", cluster_name=cluster_name, namespace=namespace,
            service_account=service_account, role_arn=self.role.role_arn)
