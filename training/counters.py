"""What the EFA devices of a node counted: the last proof that bytes went through them.

The counters are the device's own. Another pod on the node would add to them; here each node has one worker pod.
A counter that cannot be read is left out, and a node without any is unavailable: neither is ever a zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SYSFS = Path("/sys/class/infiniband")
# The EFA driver's (Linux, drivers/infiniband/hw/efa/efa_verbs.c), as far as they tell of traffic.
NAMES = (
    "tx_bytes", "rx_bytes", "tx_pkts", "rx_pkts", "rx_drops", "send_bytes", "send_wrs", "recv_bytes", "recv_wrs",
    "rdma_read_bytes", "rdma_read_wrs", "rdma_read_wr_err", "rdma_read_resp_bytes", "rdma_write_bytes",
    "rdma_write_wrs", "rdma_write_recv_bytes", "rdma_write_wr_err",
)


@dataclass(frozen=True)
class Reading:
    """Counters by device and port (`rdmap0s6/1`), then by name. `unavailable`: why there are none."""

    counters: dict[str, dict[str, int]]
    unavailable: str | None = None


def read(sysfs: Path = SYSFS) -> Reading:
    """What the EFA devices of this node have counted since they were set up."""
    if not sysfs.is_dir():
        return Reading({}, f"{sysfs} does not exist: no EFA device is visible here")
    found, denied = {}, ""
    for folder in sorted(sysfs.glob("*/ports/*/hw_counters")):
        values = {}
        for name in NAMES:
            try:
                values[name] = int((folder / name).read_text())
            except FileNotFoundError:
                continue  # older drivers have fewer
            except (OSError, ValueError) as error:
                denied = f"{folder / name} cannot be read: {getattr(error, 'strerror', None) or error}"
        if values:
            found[f"{folder.parents[2].name}/{folder.parent.name}"] = values
    if found:
        return Reading(found)
    return Reading({}, denied or f"no device under {sysfs} has EFA counters")


def moved(before: Reading, after: Reading) -> dict[str, Any]:
    """What was counted between two readings of a node, over its devices.

    Returns:
        `status` read, with `devices` and `counters` (sums by name); or unavailable, with the `reason`.
    """
    for reading in (before, after):
        if reading.unavailable:
            return {"status": "unavailable", "reason": reading.unavailable}
    if before.counters.keys() != after.counters.keys():
        return {"status": "unavailable", "reason": "other devices were there before than after"}
    total: dict[str, int] = {}
    for device, values in after.counters.items():
        for name, value in values.items():
            earlier = before.counters[device].get(name)
            if earlier is None:
                continue
            if value < earlier:
                return {"status": "unavailable", "reason": f"{device} {name} went backwards: the device was reset"}
            total[name] = total.get(name, 0) + value - earlier
    return {"status": "read", "devices": sorted(after.counters), "counters": total}


def merge(nodes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The counters of a run from those of its nodes (`moved`, with `node`).

    Returns:
        `status` read only if every node's were; `counters` are then sums over nodes.
    """
    lacking = [node for node in nodes if node["status"] != "read"]
    if lacking or not nodes:
        reason = "; ".join(f"{node['node']}: {node['reason']}" for node in lacking[:4]) or "no node reported"
        return {"status": "unavailable", "reason": reason, "nodes": list(nodes)}
    total: dict[str, int] = {}
    for node in nodes:
        for name, value in node["counters"].items():
            total[name] = total.get(name, 0) + value
    return {"status": "read", "counters": total, "nodes": list(nodes)}


def still(nodes: Sequence[dict[str, Any]]) -> list[str]:
    """Nodes whose counters were read and whose devices neither sent nor received a byte."""
    return [node["node"] for node in nodes if node["status"] == "read"
            and not any(value for name, value in node["counters"].items() if name.endswith("_bytes"))]
