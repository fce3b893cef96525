"""Every reason that a verdict may give: what it means and how to mend it, each in a line.

docs/troubleshooting.md has each of them as a user meets it.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Weight = Literal["tcp", "error", "fallback", "unproven", "note"]


class Meaning(NamedTuple):
    """`weight` is what a reason does to the verdict.

    tcp, error, unproven: what it makes of the run. fallback: NCCL could not use EFA and goes on without, which
    is an error unless a wire was seen, and does no harm on a single node. note: changes nothing.
    """

    weight: Weight
    means: str
    mend: str


# In the order in which they are worth reading: causes before what they cause.
REASONS: dict[str, Meaning] = {
    "network_not_found": Meaning(
        "error", "NCCL stopped, because NCCL_NET names a network that did not start: nothing trained on TCP",
        "look at the plugin's own lines above it; the EFA device must be in the pod (vpc.amazonaws.com/efa: 1) and "
        "NCCL_NET_PLUGIN must be ofi"),
    "plugin_name_wrong": Meaning(
        "fallback", "NCCL_NET_PLUGIN names a library that does not exist under that name",
        "set NCCL_NET_PLUGIN=ofi, which loads libnccl-net-ofi.so"),
    "plugin_not_found": Meaning(
        "fallback", "NCCL did not find aws-ofi-nccl's library",
        "use the image unmodified, or put the folder of libnccl-net-ofi.so (/opt/amazon/ofi-nccl/lib64) on "
        "LD_LIBRARY_PATH"),
    "plugin_load_failed": Meaning(
        "fallback", "NCCL found a plugin library that it cannot use: of another NCCL, or without its own libraries",
        "use the NCCL, aws-ofi-nccl and Libfabric of one image; install none of them over it with pip"),
    "no_eligible_provider": Meaning(
        "fallback", "Libfabric found no EFA device that this process may use",
        "request vpc.amazonaws.com/efa in the pod and check that the EFA device plugin runs on the node and that "
        "`fi_info -p efa` lists a device in the pod"),
    "memlock_limit": Meaning(
        "error", "the EFA provider could not lock memory for its buffers",
        "raise the memlock limit (`ulimit -l` in the pod) to unlimited: LimitMEMLOCK=infinity for containerd on "
        "the node"),
    "huge_pages": Meaning(
        "error", "huge pages are asked for where there are none, or beside fork support",
        "unset FI_EFA_USE_HUGE_PAGE and RDMAV_HUGEPAGES_SAFE, and request no hugepages-2Mi in the pod"),
    "fork_unsafe": Meaning(
        "error", "the process forked, and Libfabric stopped it because forking is not safe here",
        "set FI_EFA_FORK_SAFE=1, or use a kernel of 5.15 or later"),
    "plugin_init_failed": Meaning(
        "fallback", "aws-ofi-nccl was loaded and then failed to start, even if it had named provider efa before",
        "read the NET/OFI warnings above it; most often driver, Libfabric and plugin are of different releases, "
        "or the pod has fewer EFA devices than the instance"),
    "provider_tcp": Meaning(
        "tcp", "the plugin is Libfabric, but its provider is TCP",
        "set FI_PROVIDER=efa and request vpc.amazonaws.com/efa in the pod"),
    "provider_other": Meaning(
        "error", "the plugin is Libfabric, but its provider is not efa",
        "set FI_PROVIDER=efa and request vpc.amazonaws.com/efa in the pod"),
    "pod_identity_nic": Meaning(
        "error", "NCCL chose the link-local interface of EKS Pod Identity, which reaches no other node",
        "set NCCL_SOCKET_IFNAME=eth0"),
    "efa_peer_unreachable": Meaning(
        "error", "an EFA peer never answered (4126), and no collective had passed before",
        "let the security group of the GPU nodes allow all traffic to AND from itself (an egress rule to "
        "0.0.0.0/0 does not cover EFA), and keep all nodes in one subnet"),
    "efa_peer_lost": Meaning(
        "error", "an EFA peer that had answered before stopped answering",
        "find the rank that died first (its own log, `kubectl get pods`, node conditions); the network was right"),
    "efa_request_failed": Meaning(
        "error", "the EFA provider reported a failed transfer",
        "read the error number in the line; search Libfabric's efa_errno.h for it"),
    "nccl_failed": Meaning(
        "error", "NCCL gave up, and nothing here says why",
        "find the rank that failed first: its own log says why"),
    "socket_network": Meaning(
        "tcp", "NCCL chose its socket network: all traffic between nodes is TCP",
        "set NCCL_NET=Libfabric, so that NCCL stops and says why EFA is not used"),
    "other_network": Meaning(
        "error", "NCCL used a network that is neither Libfabric nor TCP",
        "set NCCL_NET=Libfabric and NCCL_NET_PLUGIN=ofi"),
    "single_node": Meaning(
        "unproven", "all ranks are on one node: nothing crossed the network",
        "run on two or more nodes to prove EFA"),
    "no_nccl_lines": Meaning(
        "unproven", "no complete line of NCCL's log names a process and its wire",
        "set NCCL_DEBUG=INFO and NCCL_DEBUG_FILE=/tmp/nccl.%h.%p.log, and give those files"),
    "ranks_missing": Meaning(
        "unproven", "the log does not have all ranks",
        "give the logs of all ranks: one NCCL_DEBUG_FILE a process"),
    "lines_hidden": Meaning(
        "unproven", "Ray folded lines of several ranks into one ([repeated …x across cluster])",
        "set RAY_DEDUP_LOGS=0, or read each rank's NCCL_DEBUG_FILE"),
    "truncated": Meaning(
        "unproven", "a rank's log ends or has gaps before its connections are complete",
        "give the whole log, from the start of the process"),
    "provider_unknown": Meaning(
        "unproven", "a rank uses Libfabric, but its log does not say with which provider",
        "give the log from the start of the process; NCCL_DEBUG_SUBSYS must keep INIT and NET"),
    "intent_only": Meaning(
        "unproven", "a rank chose its network but opened no channel yet",
        "let the job pass one collective (NCCL 2.22 and later connect at the first one) and keep INIT and NET in "
        "NCCL_DEBUG_SUBSYS"),
    "nothing_crossed": Meaning(
        "unproven", "no rank in this log opened a channel to another node",
        "give the logs of all ranks of all nodes"),
    "one_rank_log": Meaning(
        "note", "this is the log of one rank alone, and the verdict is about that rank",
        "give the logs of all ranks for a verdict on the run"),
}
