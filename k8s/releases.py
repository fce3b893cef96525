"""What others publish and we install: images and charts by exact version, read from dated data files."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent


@cache
def release(name: str) -> dict[str, str]:
    """The entry of versions.json: an `image`, or a Helm `chart` with `repository` and `version`."""
    return _load("versions.json")[name]


def pinned(image: str, digest: str | None) -> str:
    """`name:tag@sha256:…`, of which the digest counts and the tag tells people what it is."""
    return f"{image}@{digest}" if digest else image


def efa_plugin_image(region: str) -> str:
    """The EFA device plugin's image in the registry that EKS keeps in `region`.

    Raises:
        ValueError: no registry is known there.
    """
    accounts = _load("efa_image_accounts.json")["accounts"]
    if region not in accounts:
        raise ValueError(f"no EKS image registry is known in {region}; add its account to "
                         "k8s/efa_image_accounts.json (EKS user guide, add-ons-images)")
    return f"{accounts[region]}.dkr.ecr.{region}.amazonaws.com/{release('efa_device_plugin')['image']}"


def autoscaler_image_tag(kubernetes: str) -> str:
    """Tag of the Cluster Autoscaler for a Kubernetes version: it simulates that version's scheduler.

    Raises:
        ValueError: none is known.
    """
    tags: dict[str, str] = _load("versions.json")["cluster_autoscaler_images"]
    if kubernetes not in tags:
        raise ValueError(f"no Cluster Autoscaler is known for Kubernetes {kubernetes}; add its tag to "
                         "k8s/versions.json (kubernetes/autoscaler, tags cluster-autoscaler-1.*)")
    return tags[kubernetes]


def cloudwatch_addon() -> dict[str, Any]:
    """What is known of the EKS add-on amazon-cloudwatch-observability; see cloudwatch_addon.json."""
    return _load("cloudwatch_addon.json")


def cloudwatch_addon_version(kubernetes: str) -> str:
    """Its version for a Kubernetes version.

    Raises:
        ValueError: none is known.
    """
    versions: dict[str, str] = cloudwatch_addon()["versions"]
    if kubernetes not in versions:
        raise ValueError(f"no amazon-cloudwatch-observability is known for Kubernetes {kubernetes}; add its "
                         "version to k8s/cloudwatch_addon.json (aws eks describe-addon-versions)")
    return versions[kubernetes]


@cache
def _load(name: str) -> dict[str, Any]:
    return json.loads((_HERE / name).read_text())
