"""Nodes that there will be: from the templates of a synthesized app, or any of the catalog."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from eagleray.catalog import instance_types
from k8s.cloudwatch_agent import ADDON, requests_on
from k8s.rules.quantity import amount
from k8s.rules.world import Node, Surroundings

# EKS spells the effects of taints its own way.
_EFFECTS = {"NO_SCHEDULE": "NoSchedule", "NO_EXECUTE": "NoExecute", "PREFER_NO_SCHEDULE": "PreferNoSchedule"}


@cache
def catalog_nodes() -> dict[str, Node]:
    """A node of every instance type that we know, by type."""
    return {
        t.type: Node(t.type, t.alloc_cpu_m, t.alloc_mem_mib, t.gpus, t.efa) for t in instance_types().values()
    }


def around_files() -> Surroundings:
    """What loose manifests meet: we cannot know, but for what instance types give."""
    return Surroundings(catalog=catalog_nodes())


def around_app(cdk_out: Path) -> Surroundings:
    """What the manifests of a synthesized app meet: its nodegroups, and nothing that is not among them."""
    resources: dict[str, Any] = {}
    for file in sorted(cdk_out.glob("*.template.json")):
        resources |= json.loads(file.read_text(encoding="utf-8")).get("Resources") or {}
    groups = [r["Properties"] for r in resources.values() if r.get("Type") == "AWS::EKS::Nodegroup"]
    versions = [
        r["Properties"].get("Version") for r in resources.values() if r.get("Type") == "AWS::EKS::Cluster"
    ]
    daemons = [json.loads(r["Properties"]["ConfigurationValues"]) for r in resources.values()
               if r.get("Type") == "AWS::EKS::Addon" and r["Properties"].get("AddonName") == ADDON]
    nodes = [_node(group, resources, daemons) for group in groups]
    known = [node for node in nodes if node]
    return Surroundings(
        kubernetes=next((v for v in versions if v), Surroundings.kubernetes),
        complete=True,
        catalog=catalog_nodes(),
        nodes=known if len(known) == len(nodes) else (),
    )


def _node(group: Mapping[str, Any], resources: Mapping[str, Any], daemons: Sequence[Mapping[str, Any]]
          ) -> Node | None:
    """The nodes of an AWS::EKS::Nodegroup, or None where their type is not in the catalog.

    Less what pods of the CloudWatch add-on take, whose configurations are `daemons` (no manifest has them).
    """
    types = group.get("InstanceTypes") or []
    if not types:  # for a Capacity Block the launch template has it
        template = resources.get(group["LaunchTemplate"]["Id"].get("Ref"), {})
        types = [template.get("Properties", {}).get("LaunchTemplateData", {}).get("InstanceType")]
    base = catalog_nodes().get(types[0])
    if base is None:
        return None
    taken = [requests for one in daemons for requests in requests_on(one, gpus=base.gpus)]
    taints = [
        {"key": t.get("Key", ""), "value": t.get("Value", ""), "effect": _EFFECTS.get(t.get("Effect"), "")}
        for t in group.get("Taints") or []
    ]
    return Node(
        base.type,
        base.cpu_m - round(1000 * sum(amount(one["cpu"]) or 0 for one in taken)),
        base.memory_mib - round(sum(amount(one["memory"]) or 0 for one in taken) / 2**20),
        base.gpus,
        base.efa,
        group["ScalingConfig"]["MaxSize"],
        group.get("Labels") or {},
        taints,
    )
