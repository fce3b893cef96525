"""What AWS sells: instance types, EKS versions and regions, read from dated data files. No CDK here."""

from __future__ import annotations

import json
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any, Literal

from eagleray.gate.shape import Quota

_HERE = Path(__file__).parent


class UnknownInstanceTypeError(ValueError):
    """The catalog has no such instance type; the message names the nearest ones."""


@dataclass(frozen=True)
class InstanceType:
    """One EC2 instance type. Memory in MiB, network in Mbit/s, allocatable CPU in millicores.

    `efa` counts the network cards with EFA: `first_efa_card` and those after it. `capacity_block` says
    whether Capacity Blocks for ML are sold for it, `quota` is the code of its on-demand vCPU quota.
    """

    type: str
    gpu: str | None
    gpus: int
    gpu_mem_mib: int
    vcpu: int
    mem_mib: int
    net_mbps: int
    efa: int
    gdr: bool
    alloc_cpu_m: int
    alloc_mem_mib: int
    quota: str
    first_efa_card: int = 0
    capacity_block: bool = False

    @property
    def family(self) -> str:
        """`g6` of `g6.12xlarge`."""
        return self.type.split(".", 1)[0]


def _load(name: str) -> dict[str, Any]:
    return json.loads((_HERE / name).read_text())


@cache
def instance_types() -> dict[str, InstanceType]:
    """Every instance type of the catalog, by name."""
    data = _load("instances.json")
    return {row[0]: InstanceType(*row, first_efa_card=data["first_efa_card"].get(row[0], 0),
                                 capacity_block=row[0] in data["capacity_block"])
            for row in data["rows"]}


def instance_type(name: str) -> InstanceType:
    """The catalog's entry for `name`.

    Raises:
        UnknownInstanceTypeError: with up to three nearest names.
    """
    types = instance_types()
    if name not in types:
        near = get_close_matches(name, types, n=3, cutoff=0.4) or sorted(types)[:3]
        raise UnknownInstanceTypeError(f"{name} is not in the instance catalog; near to it: {', '.join(near)}")
    return types[name]


def efa_gpu_types() -> list[str]:
    """Names of the types that have both a GPU and an EFA interface."""
    return [t.type for t in instance_types().values() if t.gpus and t.efa]


@cache
def _quotas() -> list[Quota]:
    return [Quota(row["code"], row["name"], tuple(row["types"]), row["market"])
            for row in _load("quotas.json")["quotas"]]


def quota(instance_type: str, market: Literal["on-demand", "spot"]) -> Quota:
    """The vCPU quota that counts for a type; its code is None where that is not known (spot P6)."""
    for found in _quotas():
        if found.market == market and any(fnmatch(instance_type, pattern) for pattern in found.types):
            return found
    return Quota(None, f"{market} {instance_type}", (instance_type,), market)


@cache
def eks_versions() -> dict[str, dict[str, str | None]]:
    """EKS versions by name: `support` (standard, extended, ended) and `until`, when that ends or ended."""
    return _load("eks_versions.json")["versions"]


@cache
def regions() -> list[str]:
    """Regions with EKS."""
    return _load("regions.json")["regions"]
