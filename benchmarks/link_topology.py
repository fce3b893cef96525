"""FULL_SHARD against HSDP over a slow link, for real, on one Linux machine: predicted beside measured.

    sudo python -m benchmarks.link_topology

Two network namespaces play two nodes of two ranks each (gloo, CPU). A veth pair joins them, limited in both
directions by `tc tbf`. Traffic inside a namespace goes over its loopback and is not limited. The trainer's own
step (training/parallel.py, training/step.py) runs with each recipe: on the two nodes apart, which gives the time
of a step without the link, and on both together. Predicted is the time apart plus the bytes of
training/step_time.py over the link's rate (nothing overlaps on a CPU).

Needs root, `ip` and `tc`, and touches nothing outside of its two namespaces, which are removed at the end, on
errors and on Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from training.config import ModelConfig, OptimizerConfig, ParallelConfig
from training.hardware import Hardware
from training.memory import Recipe
from training.shape import ModelShape
from training.step_time import link_traffic

ROOT = Path(__file__).resolve().parent.parent
NODES, RANKS_A_NODE = 2, 2
TOKENS = 8
MODEL: dict[str, Any] = {
    "model_type": "qwen2", "vocab_size": 256, "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 6,
    "num_attention_heads": 8, "num_key_value_heads": 8, "max_position_embeddings": 64, "tie_word_embeddings": True,
}


def _recipe(sharding: Literal["full", "hybrid"], reduce: Literal["bf16", "fp32"], frees: bool) -> ParallelConfig:
    return ParallelConfig(sharding=sharding, reshard_after_forward=frees, reduce_dtype=reduce, recompute="none")


RECIPES = {
    "FULL_SHARD, bf16": _recipe("full", "bf16", True),
    "FULL_SHARD + keep, bf16": _recipe("full", "bf16", False),
    "HSDP, bf16": _recipe("hybrid", "bf16", True),
    "HSDP + keep, bf16": _recipe("hybrid", "bf16", False),
    "HSDP, fp32 reduce": _recipe("hybrid", "fp32", True),
}
Node = tuple[str, str, str]
"""Namespace, interface and address."""
WIRE_SHARE = 1448 / 1514
"""Payload of a full Ethernet frame: IP and TCP headers count against tc's rate."""


def main() -> int:
    """Run all recipes and print the table; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mbit", type=int, default=200, help="rate of the link in Mbit/s (default 200)")
    parser.add_argument("--steps", type=int, default=7, help="measured steps a recipe, after two to warm up")
    options = parser.parse_args()
    lacking = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if sys.platform != "linux" or lacking or os.geteuid() != 0:
        what = f"lacks {' and '.join(lacking)} (package iproute2)" if lacking else "is not Linux as root"
        print(f"link_topology needs Linux, root, ip and tc; this {what}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that `finally` runs
    with tempfile.TemporaryDirectory() as folder, two_nodes(options.mbit) as nodes:
        # Apart before and after, for the machine may have other work that comes and goes.
        before = measure([nodes[:1], nodes[1:]], options.steps, Path(folder))
        together = measure([nodes], options.steps, Path(folder))
        after = measure([nodes[:1], nodes[1:]], options.steps, Path(folder))
    apart = {name: before[name] + after[name] for name in RECIPES}
    print(table(apart, together, options.mbit))
    return 0


@contextlib.contextmanager
def two_nodes(mbit: int) -> Iterator[list[Node]]:
    """Two namespaces, joined."""
    tag = f"er{os.getpid()}"
    nodes = [(f"{tag}{side}", f"{tag}{side}", f"10.77.0.{number}") for number, side in ((1, "a"), (2, "b"))]
    try:
        for namespace, _, _ in nodes:
            _run("ip", "netns", "add", namespace)
        (left, one, _), (right, two, _) = nodes
        _run("ip", "link", "add", one, "netns", left, "type", "veth", "peer", "name", two, "netns", right)
        for namespace, interface, address in nodes:
            inside = ("ip", "netns", "exec", namespace)
            _run(*inside, "ip", "link", "set", "lo", "up")
            _run(*inside, "ip", "address", "add", f"{address}/24", "dev", interface)
            _run(*inside, "ip", "link", "set", interface, "up")
            _run(*inside, "tc", "qdisc", "add", "dev", interface, "root", "tbf",
                 "rate", f"{mbit}mbit", "burst", "128kb", "latency", "400ms")
        yield nodes
    finally:
        for namespace, _, _ in nodes:  # takes the veth with it
            subprocess.run(["ip", "netns", "delete", namespace], capture_output=True, check=False)


def measure(groups: list[list[Node]], steps: int, folder: Path) -> dict[str, list[float]]:
    """Seconds of each measured step of the first group, by recipe; each group trains for itself, all at once."""
    ranks: list[subprocess.Popen[bytes]] = []
    results = [folder / f"{len(groups)}-{number}.json" for number in range(len(groups))]
    try:
        for group, result in zip(groups, results, strict=True):
            for rank in range(len(group) * RANKS_A_NODE):
                ranks.append(_start_rank(group, rank, steps, result))
        while any(rank.poll() is None for rank in ranks):
            if any(rank.poll() for rank in ranks):
                raise SystemExit("a rank failed; its reason is above")
            time.sleep(0.2)
        return json.loads(results[0].read_text())
    finally:
        for rank in ranks:
            if rank.poll() is None:
                os.killpg(rank.pid, signal.SIGKILL)
            rank.wait()


def _start_rank(group: list[Node], rank: int, steps: int, result: Path) -> subprocess.Popen[bytes]:
    namespace, interface, _ = group[rank // RANKS_A_NODE]
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": interface,
        "MASTER_ADDR": group[0][2], "MASTER_PORT": "29500", "RANK": str(rank),
        "WORLD_SIZE": str(len(group) * RANKS_A_NODE), "TORCH_CPP_LOG_LEVEL": "ERROR",
    }
    command = [
        "ip", "netns", "exec", namespace, sys.executable, "-m", "benchmarks.link_topology",
        "--as-rank", str(len(group)), str(steps), str(result),
    ]
    return subprocess.Popen(command, env=environment, cwd=ROOT, start_new_session=True)


def as_rank(nodes: int, steps: int, result: Path) -> None:
    """One rank's part in a group of `nodes`: every recipe in turn."""
    import torch
    import torch.distributed as dist

    from training.model import read_config
    from training.parallel import build, make_mesh
    from training.step import make_optimizer, train_step

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    config = read_config(ModelConfig(weights="random", architecture=MODEL))
    seconds: dict[str, list[float]] = {}
    ids = torch.randint(0, MODEL["vocab_size"], (1, TOKENS + 1))
    batch = [(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())]
    for name, parallel in RECIPES.items():
        mesh = make_mesh(parallel, nodes, RANKS_A_NODE, "cpu")
        trained = build(config, parallel, mesh, torch.device("cpu"), seed=1)
        optimizer = make_optimizer(trained, OptimizerConfig())
        seconds[name] = []
        for number in range(steps + 2):
            dist.barrier()
            began = time.perf_counter()
            train_step(trained, optimizer, mesh, batch, learning_rate=1e-4, clip_norm=1.0)
            dist.barrier()
            if number >= 2:
                seconds[name].append(time.perf_counter() - began)
        if dist.get_rank() == 0 and nodes == NODES:
            print(f"{name}: {statistics.median(seconds[name]):.2f} s", file=sys.stderr, flush=True)
    if dist.get_rank() == 0:
        result.write_text(json.dumps(seconds))
    dist.destroy_process_group()


def link_seconds(parallel: ParallelConfig, mbit: int) -> float:
    """Seconds that a step's bytes take on the link."""
    hardware = Hardware(
        gpu="cpu", nodes=NODES, gpus_per_node=RANKS_A_NODE, memory=0, peak_flops=1, achieved=1, memory_rate=1,
        link=mbit * 1e6 / 8 * WIRE_SHARE, intra=1, reduce_scatter_cost=2,
    )
    shards = RANKS_A_NODE if parallel.sharding == "hybrid" else hardware.world
    recipe = Recipe(parallel.sharding, shards, parallel.reshard_after_forward, parallel.reduce_dtype,
                    parallel.recompute, False, TOKENS, 1, 1)
    return link_traffic(ModelShape.from_config(MODEL), recipe, hardware).step(1) / hardware.link


def table(apart: dict[str, list[float]], together: dict[str, list[float]], mbit: int) -> str:
    """The Markdown table, with what it ran on."""
    import torch

    first = statistics.median(together["FULL_SHARD, bf16"])
    rows = [("recipe", "apart, measured", "+ link, predicted", "= predicted", "measured (min to max)",
             "measured / predicted", "FULL_SHARD / this"), ("---",) * 7]
    for name, seconds in together.items():
        alone, median = statistics.median(apart[name]), statistics.median(seconds)
        link = link_seconds(RECIPES[name], mbit)
        rows.append((name, f"{alone:.2f}", f"{link:.2f}", f"{alone + link:.2f}",
                     f"**{median:.2f}** ({min(seconds):.2f} to {max(seconds):.2f})",
                     f"{median / (alone + link):.2f}", f"{first / median:.2f}"))
    size = ModelShape.from_config(MODEL).parameters / 1e6
    head = (f"{mbit} Mbit/s veth (`tc tbf`) between two network namespaces of two gloo ranks. Linux "
            f"{platform.release()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, "
            f"torch {torch.__version__}, Python {platform.python_version()}. {size:.1f} M parameters, "
            f"{2 * size:.1f} MB in bf16. Seconds a "
            f"step, medians of {len(next(iter(together.values())))}.")
    return "\n".join([head, "", *("| " + " | ".join(row) + " |" for row in rows)])


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr.strip()}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--as-rank"]:
        as_rank(int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
    else:
        sys.exit(main())
