"""The roles that AWS services take in an account."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from botocore.exceptions import ClientError

from ops.aws import error_code
from ops.preflight.finding import Finding

# IAM user guide, reference_aws-services-that-work-with-iam: role name and service of each.
_ROLES = {
    "AWSServiceRoleForAmazonEKS": "eks.amazonaws.com",
    "AWSServiceRoleForAmazonEKSNodegroup": "eks-nodegroup.amazonaws.com",
    "AWSServiceRoleForAutoScaling": "autoscaling.amazonaws.com",
}
_SPOT_ROLES = {"AWSServiceRoleForEC2Spot": "spot.amazonaws.com"}


def service_roles(iam: Any, capacity: str) -> Iterator[Finding]:
    """A note for each service-linked role that is not there yet: AWS makes it on first use, if it may."""
    needed = _ROLES | (_SPOT_ROLES if capacity == "spot" else {})
    missing = {role: service for role, service in needed.items() if not _is_there(iam, role)}
    if not missing:
        yield Finding("roles", "ok", f"all {len(needed)} service-linked roles are there")
    for role, service in missing.items():
        yield Finding("roles", "note", f"{role} is not there; AWS makes it on first use where the deploying role "
                      "may call iam:CreateServiceLinkedRole",
                      f"aws iam create-service-linked-role --aws-service-name {service}")


def _is_there(iam: Any, role: str) -> bool:
    try:
        iam.get_role(RoleName=role)
    except ClientError as error:
        if error_code(error) != "NoSuchEntity":
            raise
        return False
    return True
