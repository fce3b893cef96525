"""Whether EKS makes clusters of the Kubernetes version in the settings."""

from __future__ import annotations

from collections.abc import Iterator

from ops.preflight.finding import Finding, Region


def eks_version(region: Region, version: str) -> Iterator[Finding]:
    """Offered, offered at the price of extended support, or not offered."""
    answer = region.client("eks").describe_cluster_versions(clusterVersions=[version], includeAll=True)
    statuses = [each.get("versionStatus") for each in answer["clusterVersions"]]
    if "STANDARD_SUPPORT" in statuses:
        yield Finding("eks", "ok", f"Kubernetes {version} in standard support")
    elif "EXTENDED_SUPPORT" in statuses:
        yield Finding("eks", "note", f"Kubernetes {version} is in extended support: $0.60 instead of $0.10 an hour")
    else:
        yield Finding("eks", "failed", f"EKS in {region.name} does not make clusters of Kubernetes {version}",
                      "aws eks describe-cluster-versions --region " + region.name + "   shows those it makes")
