"""A new instance type for the catalog, from EC2's DescribeInstanceTypes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagleray import catalog
from ops.errors import NothingToDoError

CATALOG_FILE = Path(catalog.__file__).parent / "instances.json"
SOURCE = "EC2 DescribeInstanceTypes"

# What the kubelet and the system keep of a node: Karpenter's estimate, from which the other rows come too.
_VM_OVERHEAD = 0.075
_EVICTION_MIB = 100
_KUBELET_MIB, _KUBELET_MIB_A_POD = 255, 11
_RESERVED_OF_CPUS = ((1, 0.06), (1, 0.01), (2, 0.005))
_RESERVED_OF_MORE_CPUS = 0.0025


@dataclass(frozen=True)
class Entry:
    """One row of instances.json, and what stands beside the rows."""

    row: tuple[Any, ...]
    first_efa_card: int
    capacity_block: bool

    @property
    def instance_type(self) -> str:
        """Its name."""
        return self.row[0]


def entry_of(info: Mapping[str, Any]) -> Entry:
    """The entry of one InstanceTypeInfo.

    The answer does not say whether the type does GPUDirect RDMA: `gdr` is false until someone knows better.

    Raises:
        NothingToDoError: for a type on which the image or the trainer cannot run.
    """
    name, network = info["InstanceType"], info["NetworkInfo"]
    gpu, gpus, gpu_mem_mib = _gpus(info)
    if "x86_64" not in info["ProcessorInfo"]["SupportedArchitectures"]:
        raise NothingToDoError(f"{name} is not x86-64, and the training image is for x86-64 only")
    quota = catalog.quota(name, "on-demand").code
    if quota is None:
        raise NothingToDoError(f"{name}: no known vCPU quota counts for it; add its family to quotas.json first")
    vcpu, mem_mib = info["VCpuInfo"]["DefaultVCpus"], info["MemoryInfo"]["SizeInMiB"]
    efa = network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0) if network.get("EfaSupported") else 0
    row = (name, gpu, gpus, gpu_mem_mib, vcpu, mem_mib, network_mbps(network), efa, False,
           allocatable_cpu_m(vcpu), allocatable_mem_mib(mem_mib, network), quota)
    return Entry(row, _first_efa_card(network) if efa else 0,
                 "capacity-block" in info.get("SupportedUsageClasses", ()))


def _gpus(info: Mapping[str, Any]) -> tuple[str | None, int, int]:
    name, found = info["InstanceType"], info.get("GpuInfo", {}).get("Gpus", [])
    if not found:
        if "NeuronInfo" in info or "InferenceAcceleratorInfo" in info:
            raise NothingToDoError(f"{name} has AWS's own accelerators, and the trainer needs NVIDIA GPUs")
        return None, 0, 0
    gpu = found[0]
    if gpu["Manufacturer"] != "NVIDIA":
        raise NothingToDoError(f"{name} has GPUs of {gpu['Manufacturer']}, and the trainer needs NVIDIA's")
    if gpu["Count"] < 1:
        raise NothingToDoError(f"{name} has a fraction of a GPU, and a worker needs a whole one")
    return gpu["Name"].lower().replace(" ", "-"), gpu["Count"], gpu["MemoryInfo"]["SizeInMiB"]


def network_mbps(network: Mapping[str, Any]) -> int:
    """What a node can send for hours: of `Up to 25 Gigabit` the baseline, of `4x 100 Gigabit` all four.

    The bandwidth of single cards is no help: of g6e.48xlarge it adds up to four times the type's.
    """
    text = network["NetworkPerformance"]
    words = text.removesuffix(" Gigabit").split("x ")
    if text.endswith(" Gigabit") and not text.startswith("Up to"):
        count, each = (words[0], words[1]) if len(words) == 2 else ("1", words[0])
        return round(int(count) * float(each) * 1000)
    cards = network["NetworkCards"]
    return round(sum(card.get("BaselineBandwidthInGbps", 0) for card in cards) * 1000)


def allocatable_cpu_m(vcpu: int) -> int:
    """Millicores that pods can have: the kubelet keeps 6 % of the first, 1 % of the second, …"""
    kept, left = 0.0, vcpu
    for cpus, share in _RESERVED_OF_CPUS:
        kept += 1000 * share * min(cpus, left)
        left -= min(cpus, left)
    return 1000 * vcpu - round(kept + 1000 * _RESERVED_OF_MORE_CPUS * left)


def allocatable_mem_mib(mem_mib: int, network: Mapping[str, Any]) -> int:
    """MiB that pods can have: what the hypervisor leaves, without the kubelet's share for its most pods."""
    card = network["NetworkCards"][network.get("DefaultNetworkCardIndex", 0)]
    pods = card["MaximumNetworkInterfaces"] * (network["Ipv4AddressesPerInterface"] - 1) + 2
    visible = int(mem_mib * (1 - _VM_OVERHEAD))
    return visible - _KUBELET_MIB - _KUBELET_MIB_A_POD * pods - _EVICTION_MIB


def _first_efa_card(network: Mapping[str, Any]) -> int:
    """p6-b300's card 0 is for IP traffic alone."""
    with_efa = [card["NetworkCardIndex"] for card in network["NetworkCards"]
                if "efa" in card.get("InterfaceTypes", ["efa"])]
    return min(with_efa, default=0)


def with_entry(data: Mapping[str, Any], entry: Entry, source: str, today: str) -> dict[str, Any]:
    """The catalog with one more type, behind the last of its family; where it comes from is noted.

    Raises:
        NothingToDoError: if the type is there already.
    """
    names = [row[0] for row in data["rows"]]
    name = entry.instance_type
    if name in names:
        raise NothingToDoError(f"{name} is in the catalog already")
    family = [i for i, other in enumerate(names) if other.split(".")[0] == name.split(".")[0]]
    place = family[-1] + 1 if family else len(names)
    rows = [*data["rows"][:place], list(entry.row), *data["rows"][place:]]
    cards = {name: entry.first_efa_card} if entry.first_efa_card else {}
    blocks = [name] if entry.capacity_block else []
    return {
        **data,
        "added": {**data.get("added", {}), name: {"source": source, "as_of": today}},
        "first_efa_card": {**data["first_efa_card"], **cards},
        "capacity_block": [*data["capacity_block"], *blocks],
        "rows": rows,
    }


def as_text(data: Mapping[str, Any]) -> str:
    """The catalog file's text: one line for each row and each other entry."""
    return "{\n" + ",\n".join(f"  {json.dumps(key)}: {_value(value)}" for key, value in data.items()) + "\n}\n"


def _value(value: Any) -> str:
    if isinstance(value, list):
        return "[\n" + ",\n".join(f"    {json.dumps(item)}" for item in value) + "\n  ]"
    if isinstance(value, dict):
        lines = [f"    {json.dumps(key)}: {json.dumps(below)}" for key, below in value.items()]
        return "{\n" + ",\n".join(lines) + "\n  }" if lines else "{}"
    return json.dumps(value)
