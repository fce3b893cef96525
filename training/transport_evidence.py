"""What the logs of a job say, process by process; small however long the logs are, and mergeable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from training.transport_lines import Channel, Communicator, Said, Speaker

# More than any job has; a log of garbage must not fill the memory.
_MOST_PROCESSES, _MOST_PER_PROCESS = 20_000, 4_096


@dataclass
class Process:
    """One process of the job, whatever files or prefixes its lines came from.

    `channels` counts each kind of channel. `comms` are the communicators that it joined: (commId or "", size, its
    rank there) → (nodes or 0, device or -1, START or COMPLETE). `faults` keeps one line for each fault.
    """

    host: str
    pid: int
    rank: int | None = None
    nccl: str = ""
    plugin: str = ""
    gdr: bool | None = None
    providers: set[str] = field(default_factory=set)
    networks: set[str] = field(default_factory=set)
    channels: dict[Channel, int] = field(default_factory=dict)
    comms: dict[tuple[str, int, int], tuple[int, int, str]] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)

    def hear(self, line: Said) -> None:
        """Take in a line that this process wrote."""
        if line.channel:
            self._hear_channel(line.channel, 1)
        if line.comm:
            self._hear_comm(line.comm)
        for name, value in line.facts:
            if name == "provider":
                _add(self.providers, value.lower())
            elif name == "network":
                _add(self.networks, value)
            elif name == "gdr":
                self.gdr = self.gdr or value == "1"
            else:
                setattr(self, name, max(getattr(self, name), value))
        for code in line.faults:
            self.fault(code, line.text)

    def fault(self, code: str, text: str) -> None:
        """Keep one line a fault, the same one whatever the order."""
        self.faults[code] = min(self.faults.get(code, text), text)

    def _hear_channel(self, channel: Channel, times: int) -> None:
        if channel not in self.channels and len(self.channels) >= _MOST_PER_PROCESS:
            channel = channel._replace(peer=channel.own)  # forget to whom, never over what
        self.channels[channel] = self.channels.get(channel, 0) + times

    def _hear_comm(self, comm: Communicator) -> None:
        key = (comm.ident, comm.size, comm.rank)
        nodes, device, phase = self.comms.get(key, (0, -1, ""))
        if key in self.comms or len(self.comms) < _MOST_PER_PROCESS:
            # COMPLETE sorts before START
            known = min(filter(None, (phase, comm.phase)), default="")
            self.comms[key] = (max(nodes, comm.nodes), max(device, comm.device), known)

    def transports(self, own: int | None = None) -> dict[str, int]:
        """Channels by transport; of one of its ranks, where it has several."""
        total: dict[str, int] = {}
        for channel, count in self.channels.items():
            if own is None or channel.own == own:
                total[channel.transport] = total.get(channel.transport, 0) + count
        return total

    def uses_gdr(self) -> bool | None:
        """Whether the GPU's memory goes to the network directly; None where the log does not tell."""
        between = [channel.gdr for channel in self.channels if channel.between_nodes]
        return any(between) if between else self.gdr

    def own_ranks(self) -> set[int]:
        """Its ranks in its largest communicator: several where it drives several GPUs; empty where unknown."""
        if self.rank is not None:
            return {self.rank}
        if self.comms:
            largest = max(size for _, size, _ in self.comms)
            ranks = {rank for _, size, rank in self.comms if size == largest}
            devices = {device for (_, size, _), (_, device, _) in self.comms.items() if size == largest} - {-1}
            # on one device, several ranks are those of several communicators, and none is the job's
            return ranks if len(ranks) == 1 or len(devices) == len(ranks) else set()
        own = {channel.own for channel in self.channels}
        return own if len(own) == 1 else set()

    def joined(self) -> bool:
        """Whether it took part in the job's communication, as far as seen."""
        return bool(self.comms or self.channels or self.providers or self.networks or self.rank is not None)

    def absorb(self, other: Process) -> None:
        """Add what another reader heard of the same process."""
        self.rank = other.rank if self.rank is None else self.rank
        self.nccl, self.plugin = max(self.nccl, other.nccl), max(self.plugin, other.plugin)
        self.gdr = self.gdr or other.gdr if other.gdr is not None else self.gdr
        self.providers |= other.providers
        self.networks |= other.networks
        for channel, count in other.channels.items():
            self._hear_channel(channel, count)
        for (ident, size, rank), known in other.comms.items():
            self._hear_comm(Communicator(ident, rank, size, *known))
        for code, text in other.faults.items():
            self.fault(code, text)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "host": self.host, "pid": self.pid, "rank": self.rank, "nccl": self.nccl, "plugin": self.plugin,
            "gdr": self.gdr, "providers": sorted(self.providers), "networks": sorted(self.networks),
            "channels": [[*channel, count] for channel, count in sorted(self.channels.items())],
            "comms": [[*key, *value] for key, value in sorted(self.comms.items())],
            "faults": self.faults,
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Process:
        """The inverse of to_dict."""
        return cls(
            record["host"], record["pid"], record["rank"], record["nccl"], record["plugin"], record["gdr"],
            set(record["providers"]), set(record["networks"]),
            {Channel(*channel): count for *channel, count in record["channels"]},
            {(ident, size, rank): (nodes, device, phase)
             for ident, size, rank, nodes, device, phase in record["comms"]},
            dict(record["faults"]))


@dataclass
class Evidence:
    """What all logs say together.

    `sources` counts files; `repeated` the lines that Ray folded; `collectives` is whether a collective is known
    to have passed; `unclaimed` are faults whose process is not known.
    """

    processes: dict[Speaker, Process] = field(default_factory=dict)
    unclaimed: dict[str, str] = field(default_factory=dict)
    sources: int = 0
    repeated: int = 0
    collectives: bool = False

    def process(self, speaker: Speaker) -> Process:
        """The process, known or new."""
        found = self.processes.get(speaker)
        if found is None:
            found = Process(*speaker)
            if len(self.processes) < _MOST_PROCESSES:
                self.processes[speaker] = found
        return found

    def note_collective(self) -> None:
        """A collective has passed, as the job itself knows: a silent peer is then a lost one."""
        self.collectives = True

    def claim_rank(self, rank: int) -> None:
        """All processes heard are this rank of the job: for the rank that reads its own NCCL_DEBUG_FILE."""
        for process in self.processes.values():
            process.rank = rank

    def merge(self, others: Iterable[Evidence]) -> Evidence:
        """Add what others read; the same as reading all their files here. Returns self."""
        for other in others:
            for speaker, process in other.processes.items():
                self.process(speaker).absorb(process)
            for code, text in other.unclaimed.items():
                self.unclaimed[code] = min(self.unclaimed.get(code, text), text)
            self.sources += other.sources
            self.repeated += other.repeated
            self.collectives = self.collectives or other.collectives
        return self

    def to_dict(self) -> dict[str, Any]:
        """For JSON: a few KiB a process."""
        return {"processes": [process.to_dict() for _, process in sorted(self.processes.items())],
                "unclaimed": self.unclaimed, "sources": self.sources, "repeated": self.repeated,
                "collectives": self.collectives}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Evidence:
        """The inverse of to_dict."""
        processes = [Process.from_dict(item) for item in record["processes"]]
        return cls({(process.host, process.pid): process for process in processes}, dict(record["unclaimed"]),
                   record["sources"], record["repeated"], record["collectives"])


def _add(values: set[Any], value: Any) -> None:
    if len(values) < _MOST_PER_PROCESS:
        values.add(value)
