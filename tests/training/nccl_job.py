"""Logs of a whole job as NCCL and aws-ofi-nccl would write them, rank by rank, in the words of several releases."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Release:
    """How one NCCL writes what a verdict is read from. `{}` stand for the values of that line."""

    nccl: str
    provider: str
    network: tuple[str, ...]
    comm: tuple[str, ...]
    channel: str
    network_channel: str
    local: tuple[str, str]


# filled in twice: first with function and phase, then with a rank's values
_PLACE = ("{}comm 0x{{rank}}aa0 rank {{rank}} nranks {{world}} cudaDev {{gpu}} nvmlDev {{gpu}} busId 1{{gpu}}0 "
          "commId 0x{{id}} - Init {}")
_NODES = "comm 0x{rank}aa0 rank {rank} nRanks {world} nNodes {nodes} localRanks {local} localRank {gpu} MNNVL 0"

RELEASES = {
    "2.12": Release(
        "2.12.12+cuda11.6", "NET/OFI Selected Provider is efa", ("Using network AWS Libfabric",),
        ("comm 0x7f00a0000fa0 rank {rank} nranks {world} cudaDev {gpu} busId 1{gpu}0 - Init COMPLETE",),
        "Channel {ch:02d} : {a}[1{ga}0] -> {b}[1{gb}0] via {how}",
        "Channel {ch:02d}/0 : {a}[1{ga}0] -> {b}[1{gb}0] [{way}] via NET/AWS Libfabric/{gpu}/GDRDMA",
        ("direct shared memory", "P2P/IPC")),
    "2.18": Release(
        "2.18.6+cuda12.1", "NET/OFI Selected Provider is efa (found 4 nics)", ("Using network AWS Libfabric",),
        (_PLACE.format("", "START"), _PLACE.format("", "COMPLETE")),
        "Channel {ch:02d}/0 : {a}[{ga}] -> {b}[{gb}] via {how}",
        "Channel {ch:02d}/0 : {a}[{ga}] -> {b}[{gb}] [{way}] via NET/AWS Libfabric/{gpu}/GDRDMA/Shared",
        ("SHM/direct/direct", "P2P/IPC/read")),
    "2.21": Release(
        "2.21.5+cuda12.4", "NET/OFI Selected provider is efa, fabric is efa (found 4 nics)",
        ("Using network Libfabric",),
        (_PLACE.format("ncclCommInitRank ", "START"), _NODES, _PLACE.format("ncclCommInitRank ", "COMPLETE")),
        "Channel {ch:02d}/0 : {a}[{ga}] -> {b}[{gb}] via {how}",
        "Channel {ch:02d}/0 : {a}[{ga}] -> {b}[{gb}] [{way}] via NET/Libfabric/{gpu}(0)/GDRDMA",
        ("SHM/direct/direct", "P2P/CUMEM/read")),
    "2.29": Release(
        "2.29.7+cuda13.0", "NET/OFI Selected provider is efa, fabric is efa-direct (found 1 nics)",
        ("Initialized NET plugin Libfabric", "Assigned NET plugin Libfabric to comm", "Using network Libfabric"),
        (_PLACE.format("[Rank {rank}] ncclCommInitRankConfig ", "START"), _NODES,
         _PLACE.format("ncclCommInitRankConfig ", "COMPLETE")),
        "Channel {ch:02d}/0 : {a}[{ga}] -> {b}[{gb}] via {how}",
        "Channel {ch:02d}/0 : {a}[{ga}] -> {b}[{gb}] [{way}] via NET/Libfabric/{gpu}/GDRDMA(PCI)",
        ("SHM/direct", "P2P/CUMEM")),
}


@dataclass(frozen=True)
class Job:
    """A ring over all ranks. `on_sockets` are ranks that fell back to TCP without a word about why."""

    nodes: int = 2
    gpus: int = 2
    release: str = "2.29"
    on_sockets: frozenset[int] = frozenset()
    name: str = "5d1f00ba4"

    @property
    def world(self) -> int:
        return self.nodes * self.gpus

    def ranks(self) -> dict[int, list[str]]:
        """Each rank's lines, as its own NCCL_DEBUG_FILE has them."""
        return {rank: self._lines(rank) for rank in range(self.world)}

    def lines(self) -> list[str]:
        """All lines, one rank after the other."""
        return [line for lines in self.ranks().values() for line in lines]

    def _lines(self, rank: int) -> list[str]:
        words = RELEASES[self.release]
        node, gpu = divmod(rank, self.gpus)
        values = {"rank": rank, "world": self.world, "gpu": gpu, "nodes": self.nodes, "local": self.gpus,
                  "id": self.name}
        said = [f"Bootstrap : Using eth0:10.0.0.{node + 1}<0>", f"NCCL version {words.nccl}"]
        if rank in self.on_sockets:
            said += ["NET/IB : No device found.", f"NET/Socket : Using [0]eth0:10.0.0.{node + 1}<0>",
                     "Using network Socket"]
        else:
            said += ["NET/OFI Initializing aws-ofi-nccl 1.20.0", words.provider, *words.network]
        said += [line.format(**values) for line in words.comm]
        said += self._channels(rank, words)
        said.append("Connected all rings")
        return [f"node-{node}:{100 + rank}:{300 + rank} [{gpu}] NCCL INFO {text}" for text in said]

    def _channels(self, rank: int, words: Release) -> list[str]:
        before, after = (rank - 1) % self.world, (rank + 1) % self.world
        lines = []
        for ch in range(2):
            for a, b, way in ((before, rank, "receive"), (rank, after, "send")):
                ga, gb = a % self.gpus, b % self.gpus
                place = {"ch": ch, "a": a, "b": b, "ga": ga, "gb": gb, "gpu": rank % self.gpus}
                if a // self.gpus == b // self.gpus:
                    if way == "send":
                        lines.append(words.channel.format(**place, how=words.local[ch]))
                elif rank in self.on_sockets:
                    lines.append(f"Channel {ch:02d}/0 : {a}[{ga}] -> {b}[{gb}] [{way}] via NET/Socket/0")
                else:
                    lines.append(words.network_channel.format(**place, way=way))
        return lines
