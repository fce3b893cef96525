"""How long `eagleray transport` takes for a gigabyte of log, and how much memory.

    python -m benchmarks.transport_logs

Writes one log of each kind to a temporary folder, reads it in a process of its own, and deletes it: a job whose
log is mostly collectives (NCCL_DEBUG_SUBSYS=ALL), and the worst case, in which every line opens a channel. Linux.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from training.transport import read_logs, verdict

RANKS, GPUS = 64, 8
_OPENS = {"collectives": 0.02, "channels": 1.0}  # share of lines that open a channel


def block(kind: str, dice: random.Random, lines: int = 20_000) -> bytes:
    """Lines of a job of 64 ranks on 8 nodes, in any order."""
    written = []
    for _ in range(lines):
        rank, channel = dice.randrange(RANKS), dice.randrange(32)
        gpu, peer = rank % GPUS, (rank + 1) % RANKS
        head = f"ip-10-0-1-{rank // GPUS}:{100 + gpu}:{1000 + 4 * gpu + dice.randrange(3)} [{gpu}] NCCL INFO "
        if dice.random() < _OPENS[kind]:
            written.append(f"{head}Channel {channel:02d}/0 : {rank}[{gpu}] -> {peer}[{peer % GPUS}] [send] via "
                           f"NET/Libfabric/{gpu}/GDRDMA\n")
        else:
            count, buffer = dice.randrange(1 << 20), dice.randrange(1 << 40)
            written.append(f"{head}AllReduce: opCount {count:x} sendbuff {buffer:#x} recvbuff {buffer:#x} "
                           f"count {count} datatype 9 op 0 root 0 comm 0x55 [nranks={RANKS}] stream 0x55\n")
    return "".join(written).encode()


def blocks(kind: str, size: int) -> Iterator[bytes]:
    """About `size` bytes: 20 different blocks, again and again."""
    dice = random.Random(1)
    different = [block(kind, dice) for _ in range(20)]
    written = 0
    while written < size:
        part = different[dice.randrange(len(different))]
        written += len(part)
        yield part


def read(path: Path) -> None:
    """Read a log and print seconds, CPU seconds and MiB."""
    began, cpu = time.perf_counter(), time.process_time()
    verdict(read_logs([path]))
    # not getrusage: its peak includes that of the process that started this one
    status = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    print(f"{time.perf_counter() - began:.1f} {time.process_time() - cpu:.1f} {peak / 1024:.0f}")


def main() -> None:
    """Measure each kind."""
    options = argparse.ArgumentParser(description="A gigabyte of log for eagleray transport.")
    options.add_argument("--gigabytes", type=float, default=1.0)
    options.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.read:
        read(chosen.read)
        return
    print("| log | GB | seconds | CPU seconds | peak MiB |\n|---|---|---|---|---|")
    for kind in _OPENS:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "nccl.log"
            with path.open("wb") as log:
                log.writelines(blocks(kind, int(chosen.gigabytes * 1e9)))
            told = subprocess.run([sys.executable, "-m", "benchmarks.transport_logs", "--read", str(path)],
                                  check=True, capture_output=True, text=True).stdout.split()
            print(f"| {kind} | {path.stat().st_size / 1e9:.2f} | {' | '.join(told)} |")


if __name__ == "__main__":
    main()
