"""Environment of the worker pods: what their hardware demands, whatever the job."""

from __future__ import annotations

# Families without a direct path between their GPUs, where NCCL copies through shared memory. There the copy
# engines beat the cores that also have to compute (about 2x inside a node; source: awslabs/awsome-distributed-ai,
# 1.architectures/efa-cheatsheet.md, not measured by us).
_COPIES_THROUGH_SHARED_MEMORY = ("g5", "g6")


OVER_EFA = {
    "FI_PROVIDER": "efa",
    "NCCL_NET_PLUGIN": "ofi",
    # Without this NCCL falls back to TCP in silence; with it, it stops.
    "NCCL_NET": "Libfabric",
}
"""What makes NCCL use EFA or stop."""
OVER_TCP = {"FI_PROVIDER": "tcp", "NCCL_NET_PLUGIN": "none", "NCCL_NET": "Socket"}
"""The same three variables for plain TCP sockets, which `eagleray bench` compares EFA with."""


def efa_environment(instance_family: str) -> dict[str, str]:
    """NCCL over EFA or not at all, and one log file a process from which that can be proven."""
    variables = {
        **OVER_EFA,
        # The pod's own interface. Pod Identity adds a link-local one, which NCCL would try as well.
        "NCCL_SOCKET_IFNAME": "eth0",
        "GLOO_SOCKET_IFNAME": "eth0",  # the ranks' side channel (training/side_channel.py)
        "NCCL_DEBUG": "INFO",
        # INIT and NET name the provider and the network of every channel, ENV what was asked for.
        "NCCL_DEBUG_SUBSYS": "INIT,BOOTSTRAP,NET,ENV",
        "NCCL_DEBUG_FILE": "/tmp/nccl.%h.%p.log",
    }
    if instance_family in _COPIES_THROUGH_SHARED_MEMORY:
        variables["NCCL_SHM_USE_CUDA_MEMCPY"] = "1"
    return variables
