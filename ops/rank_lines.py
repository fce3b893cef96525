"""The lines of each rank, out of what Ray sends to a job's driver."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

# Ray Train's controller, each time that workers start: `- (ip=10.0.0.11, pid=301) world_rank=0, local_rank=0, …`
# (ray 2.58, train/v2/_internal/execution/worker_group/worker_group.py)
_STARTED = re.compile(r"\(ip=([\w.:]+), pid=(\d+)\) world_rank=(\d+)")
# Before each line of a worker; Ray leaves the address out on the driver's own node (ray/_private/worker.py).
_PREFIX = re.compile(r"^\((?:(?P<actor>[\w.()]+) )?pid=(?P<pid>\d+)(?:, ip=(?P<ip>[\w.:]+))?\) ?(?P<text>.*)$")
_WORKER = "RayTrainWorker"


@dataclass
class RankLines:
    """Tells whose a line is. Lines must come in order: after a restart the ranks have other processes."""

    ranks: dict[tuple[str | None, str], int] = field(default_factory=dict)
    """By address and process id."""

    def rank_of(self, line: str) -> tuple[int | None, str]:
        """The rank that printed a line, and the line without Ray's prefix; None for driver and controller."""
        if started := _STARTED.search(line):
            ip, pid, rank = started.groups()
            self.ranks = {process: old for process, old in self.ranks.items() if old != int(rank)}
            self.ranks[ip, pid] = int(rank)
            return None, line
        found = _PREFIX.match(line)
        if found is None or found["actor"] != _WORKER:
            return None, line
        return self._rank(found["ip"], found["pid"]), found["text"]

    def _rank(self, ip: str | None, pid: str) -> int | None:
        if ip is not None:
            return self.ranks.get((ip, pid))
        of_pid = [rank for (_, other), rank in self.ranks.items() if other == pid]
        return of_pid[0] if len(of_pid) == 1 else None

    @property
    def known(self) -> list[int]:
        """Ranks that have started."""
        return sorted(set(self.ranks.values()))


def driver_lines(lines: Iterable[str]) -> Iterator[str]:
    """What driver and controller printed, without the ranks."""
    for line in lines:
        found = _PREFIX.match(line)
        if found is None or found["actor"] != _WORKER:
            yield line


def lines_of_rank(lines: Iterable[str], rank: int | None, ranks: RankLines) -> Iterator[str]:
    """What one rank printed; with `rank` None what all printed, each line with its rank before it."""
    for line in lines:
        whose, text = ranks.rank_of(line)
        if whose is not None and rank is None:
            yield f"rank {whose} | {text}"
        elif whose is not None and whose == rank:
            yield text
