"""The proof of the wire on each rank, with a network that does what a test wants."""

import os
import socket
import time
from pathlib import Path

import torch
import torch.distributed as dist

from training import fabric, fabric_pairs, wire
from training.config import TrainJob
from training.errors import AgreedError
from training.side_channel import MissingRanksError, SideChannel
from training.storage import RunFolder

CPU = torch.device("cpu")

# One rank's log: {host} and {pid} wrote it, {rank} of 2, {peer} is the other.
_STARTED = """\
{host}:{pid}:1 [0] NCCL INFO NCCL version 2.27.3+cuda12.9
{host}:{pid}:1 [0] NCCL INFO ncclCommInitRank comm 0x1 rank {rank} nranks 2 cudaDev 0 nvmlDev 0 busId 1e0 \
commId 0xabc - Init START
"""
_CONNECTED = """\
{host}:{pid}:1 [0] NCCL INFO comm 0x1 rank {rank} nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0
{host}:{pid}:1 [0] NCCL INFO ncclCommInitRank comm 0x1 rank {rank} nranks 2 cudaDev 0 nvmlDev 0 busId 1e0 \
commId 0xabc - Init COMPLETE
{host}:{pid}:1 [0] NCCL INFO Channel 00/0 : {peer}[0] -> {rank}[0] [receive] via NET/{network}/0
{host}:{pid}:1 [0] NCCL INFO Channel 00/0 : {rank}[0] -> {peer}[0] [send] via NET/{network}/0
"""
_EFA = """\
{host}:{pid}:1 [0] NCCL INFO NET/OFI Initializing aws-ofi-nccl 1.20.0
{host}:{pid}:1 [0] NCCL INFO NET/OFI Selected provider is efa, fabric is efa (found 1 nics)
{host}:{pid}:1 [0] NCCL INFO Using network Libfabric
"""
_NO_PROVIDER = """\
{host}:{pid}:1 [0] NCCL INFO NET/OFI Initializing aws-ofi-nccl 1.20.0
{host}:{pid}:1 [0] nccl_net_ofi_init:250 NCCL WARN NET/OFI No eligible providers were found
{host}:{pid}:1 [0] NCCL INFO Using network Socket
"""
_LATER_SOCKET = """\
{host}:{pid}:1 [0] NCCL INFO Channel 00/0 : {rank}[0] -> {peer}[0] [send] via NET/Socket/0
"""


def log(kind, network="Libfabric"):
    """What NCCL of this rank writes."""
    rank = dist.get_rank()
    text = {"efa": _STARTED + _EFA + _CONNECTED, "no_provider": _STARTED + _NO_PROVIDER + _CONNECTED,
            "later_socket": _LATER_SOCKET}[kind]
    return text.format(host=f"node-{rank}", pid=os.getpid(), rank=rank, peer=1 - rank, network=network)


def own_file(folder):
    """Where it writes it, as NCCL makes the name of NCCL_DEBUG_FILE."""
    return Path(folder, f"nccl.{socket.gethostname().split('.')[0]}.{os.getpid()}.log")


def proof(job, nccl_debug_file=None):
    parsed = TrainJob.model_validate(job)
    channel = SideChannel(30, f"10.0.0.{dist.get_rank() // parsed.placement.workers_per_node}")
    folder = RunFolder(parsed.placement.storage, parsed.name)
    return wire.Wire(parsed, folder, channel, wire.Here(CPU, nccl_debug_file))


def refusal(action):
    try:
        action()
    except AgreedError as error:
        return str(error)
    return None


def over_gloo(job, fault=None):
    """Why the check of this rank refused the job; None if it did not. `fault` is installed first."""
    if fault is not None:
        fault()
    return refusal(proof(job).prove)


def rank_2_gives_something_else():
    true = fabric.contribution

    def lie(rank, world, dtype, device):
        mine, expected = true(rank, world, dtype, device)
        return (mine * 0 if rank == 2 else mine), expected

    fabric.contribution = lie


def ranks_1_and_2_are_slow_together():
    true = fabric_pairs._swap

    def slow(out, into, peer):
        if {dist.get_rank(), peer} == {1, 2}:
            time.sleep(0.05)
        true(out, into, peer)

    fabric_pairs._swap = slow


def rank_1_hangs_in_its_first_all_reduce():
    true = fabric.connect
    fabric.connect = lambda device: time.sleep(600) if dist.get_rank() == 1 else true(device)


def rank_0_cannot_connect():
    def connect(device):
        if dist.get_rank() == 0:
            raise RuntimeError("NCCL error in: NCCLUtils.cpp:94, invalid usage\nLast error: network not found")

    fabric.connect = connect


def without_rank_1(job):
    """Rank 1 does not come to the check; what the other says."""
    mine = proof(job)
    if dist.get_rank() == 1:
        time.sleep(2)
        return None
    try:
        mine.prove()
    except MissingRanksError as error:
        return str(error)
    return None


def over_nccl(job, folder, first, later=None, sent=None):
    """Prove, then train a step, with NCCL logs of kind `first`, to which `later` is added when training starts.

    `sent`: bytes that each node's EFA device counts meanwhile; None: there is no device to ask.
    """
    if sent is not None:
        readings = iter([100, 100 + sent])
        wire.counters.read = lambda: wire.counters.Reading({"rdmap0s6/1": {"tx_bytes": next(readings)}})
    mine = proof(job, f"{folder}/nccl.%h.%p.log")
    true = fabric.connect

    def connect(device):
        true(device)
        if first is not None:
            own_file(folder).write_text(log(first))

    fabric.connect = connect
    before = refusal(mine.prove)
    if before is not None:
        return before, None
    mine.start_counting()
    if later is not None:
        with own_file(folder).open("a") as stream:
            stream.write(log(later))
    after = refusal(mine.after_first_step)
    if after is None:
        mine.after_last_step()
    return None, after


def contributions(world):
    """For each dtype: what all ranks give, added up, minus the sum that is expected."""
    off = []
    for dtype in (torch.bfloat16, torch.float32):
        given = [fabric.contribution(rank, world, dtype, CPU) for rank in range(world)]
        total = given[0][0].clone()
        for mine, _ in given[1:]:
            total += mine
        off.append((total - given[0][1]).abs().max().item())
    return off
