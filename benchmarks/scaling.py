"""Several GPUs of one host: this trainer sharded over 1, 2, … N of them, beside public recipes, in one run.

    python benchmarks/scaling.py [--gpus N] [--batch B] [--out FOLDER] [--only full,hybrid] [--device cpu]

Qwen2.5-1.5B's shape with random weights, random token ids, sequences of 2048; each row runs under torchrun in
processes of its own. Weak rows keep the batch of a GPU, strong rows that of all together; the losses of the
strong rows must be those of one GPU. A profile tells how much of a step is communication that no computation
hides. A further row is the fabric check beside plain all-reduces, with NCCL's logs and what
`eagleray transport` says of them. With --device cpu it is a rehearsal: gloo, a tiny model, nothing to compare.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import throughput  # noqa: E402
from benchmarks.fresh_process import result_of, tell  # noqa: E402
from benchmarks.throughput import ARCHITECTURE  # noqa: E402

WARM_UP, TIMED, PROFILED, SEED = 5, 12, 3, 1
TINY = {**ARCHITECTURE, "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4}
RECIPES = ("full", "hybrid", "fp8", "sample", "hf-trainer", "fabric")


@dataclass(frozen=True)
class Row:
    """One measurement: a recipe on so many GPUs, each with `batch` sequences."""

    recipe: str
    gpus: int
    batch: int
    scaling: str
    device: str

    @property
    def sequence(self) -> int:
        """Tokens of a sequence."""
        return 2048 if self.device == "cuda" else 32


def rows(gpus: int, batch: int, device: str) -> list[Row]:
    """What to measure on `gpus` GPUs: weak and strong scaling in powers of two, meshes, precisions, others."""
    counts = [n for n in (2 ** k for k in range(gpus.bit_length())) if n <= gpus]
    found = [Row("full", n, batch, "weak", device) for n in counts]
    found += [Row("full", n, batch // n, "strong", device) for n in counts if batch % n == 0]
    if gpus >= 4:
        found.append(Row("hybrid", gpus, batch, "weak", device))
    if device == "cuda":
        found += [Row(name, gpus, batch, "weak", device) for name in ("fp8", "sample", "hf-trainer")]
    return [*found, Row("fabric", gpus, 0, "", device)]


def token_ids(row: Row, step: int, rank: int) -> Any:
    """[batch, sequence + 1]: this rank's part of the step's global batch, the same whatever the number of ranks."""
    import torch

    vocabulary = _architecture(row)["vocab_size"]
    generator = torch.Generator().manual_seed(SEED + step)
    ids = torch.randint(0, vocabulary, (row.batch * row.gpus, row.sequence + 1), generator=generator)
    return ids[rank * row.batch:(rank + 1) * row.batch].to(row.device)


def _architecture(row: Row) -> dict[str, Any]:
    return ARCHITECTURE if row.device == "cuda" else TINY


def ours(row: Row) -> tuple[Callable[[Any], Any], float]:
    """This trainer's step, and the GiB that its memory model predicts for a GPU."""
    import torch

    from training import model, parallel, step
    from training.config import ModelConfig, OptimizerConfig, ParallelConfig
    from training.memory import Recipe, predict_memory
    from training.shape import ModelShape

    precision = "fp8" if row.recipe == "fp8" else "bf16"
    nodes = 2 if row.recipe == "hybrid" else 1
    config = ParallelConfig(sharding="hybrid" if nodes == 2 else "full", recompute="none", reduce_dtype="fp32",
                            reshard_after_forward=False)
    mesh = parallel.make_mesh(config, nodes, row.gpus // nodes, row.device)
    architecture = model.read_config(ModelConfig(weights="random", architecture=_architecture(row)))
    device = torch.device(row.device, torch.cuda.current_device()) if row.device == "cuda" else torch.device("cpu")
    trained = parallel.build(architecture, config, mesh, device, seed=SEED, precision=precision)
    optimizer = step.make_optimizer(trained, OptimizerConfig())
    recipe = Recipe(sharding=config.sharding, shards=row.gpus // nodes, reshard_after_forward=False,
                    reduce_dtype="fp32", recompute="none", compiled=row.device == "cuda", sequence=row.sequence,
                    micro_batch=row.batch, accumulation=1, precision=precision)
    predicted = predict_memory(ModelShape.from_config(architecture.to_dict()), recipe).gib

    def run(ids: Any) -> Any:
        pair = (ids[:, :-1].contiguous(), ids[:, 1:].contiguous())
        return step.train_step(trained, optimizer, mesh, [pair], learning_rate=1e-4, clip_norm=1.0)[0]

    return run, predicted


def measure(row: Row, rank: int) -> dict[str, Any]:
    """Time the steps of one row. Call on all ranks; rank 0's answer counts."""
    import torch

    if row.recipe == "hf-trainer":
        timed = throughput.hf_trainer(row.batch, liger=False, fsdp2=row.gpus > 1)
        return {"milliseconds": timed["milliseconds"], "losses": [timed["loss"]], "peak_gib": _peak(row)}
    run, predicted = ours(row) if row.recipe != "sample" else (throughput.sample(), None)
    now, milliseconds, losses = time.perf_counter, [], []
    for number in range(WARM_UP + TIMED):
        ids = token_ids(row, number, rank)
        _finish(row)
        start = now()
        loss = run(ids)
        _finish(row)
        milliseconds.append((now() - start) * 1e3)
        losses.append(_mean(loss))
    peak = _peak(row)
    exposed = None
    if row.device == "cuda" and row.gpus > 1:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            for number in range(PROFILED):
                run(token_ids(row, WARM_UP + TIMED + number, rank))
            _finish(row)
        kernels = [(event.name, event.time_range.start, event.time_range.end) for event in profile.events() or []]
        exposed = exposed_share(kernels)
    return {"milliseconds": milliseconds[WARM_UP:], "losses": losses, "peak_gib": peak,
            "predicted_gib": predicted, "exposed_communication": exposed}


def _mean(loss: Any) -> float:
    """Over ranks: a sharded step of ours has the global loss already, one of FSDP1 its rank's."""
    import torch.distributed as dist

    mean = loss.detach().float().clone()
    dist.all_reduce(mean)
    return float(mean) / dist.get_world_size()


def _finish(row: Row) -> None:
    import torch

    if row.device == "cuda":
        torch.cuda.synchronize()


def _peak(row: Row) -> float | None:
    import torch

    return torch.cuda.max_memory_allocated() / 2**30 if row.device == "cuda" else None


def exposed_share(kernels: Iterable[tuple[str, float, float]]) -> float | None:
    """The part of a profile in which NCCL runs and nothing else does.

    Args:
        kernels: name, start and end of each on one GPU, in one unit.

    Returns:
        0 to 1; None without kernels.
    """
    found = list(kernels)
    if not found:
        return None
    whole = max(end for _, _, end in found) - min(start for _, start, _ in found)
    nccl = merged((start, end) for name, start, end in found if name.startswith("nccl"))
    compute = merged((start, end) for name, start, end in found if not name.startswith("nccl"))
    hidden = sum(max(0.0, min(b, d) - max(a, c)) for a, b in nccl for c, d in compute)
    return (sum(b - a for a, b in nccl) - hidden) / whole


def merged(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The same times without overlaps, in order."""
    found: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def fabric(row: Row) -> dict[str, Any]:
    """The fabric check of the trainer beside plain all-reduces of its largest size."""
    import torch
    import torch.distributed as dist

    from training import fabric as check
    from training.side_channel import SideChannel

    device = torch.device(row.device, torch.cuda.current_device() if row.device == "cuda" else 0)
    check.connect(device)
    found = check.measure(device, SideChannel(60, "here"), 5, 60)
    size = max((one.size for one in found.measured), default=2**20)
    tensor = torch.zeros(size // 4, device=device)
    seconds = []
    for _ in range(10):
        _finish(row)
        start = time.perf_counter()
        dist.all_reduce(tensor)
        _finish(row)
        seconds.append(time.perf_counter() - start)
    plain = check.bus_bandwidth(size, statistics.median(seconds), dist.get_world_size())
    of_that_size = next((one.bus_gb_s for one in found.measured if one.size == size), None)
    return {"check_gb_s": of_that_size, "plain_gb_s": plain, "size_mib": size / 2**20,
            "wrong_sums": len(found.wrong)}


def run_rank(row: Row) -> None:
    """One rank of a row, under torchrun; rank 0 prints the result as a line of JSON."""
    import torch
    import torch.distributed as dist

    rank = int(os.environ["RANK"])
    if row.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if row.device == "cuda" else "gloo")
    name = torch.cuda.get_device_name() if row.device == "cuda" else "CPU (rehearsal)"
    result = {**dataclasses.asdict(row), "device_name": name, "torch": torch.__version__}
    try:
        result |= fabric(row) if row.recipe == "fabric" else measure(row, rank)
    except torch.OutOfMemoryError:
        result["error"] = "out of memory"
    if result.get("milliseconds"):
        step = statistics.median(result["milliseconds"])
        result |= {"step_ms": step, "tokens_per_second_per_gpu": row.batch * row.sequence / step * 1e3}
    if rank == 0:
        tell(result)
    if dist.is_initialized():
        dist.destroy_process_group()


def run_row(row: Row, out: Path) -> dict[str, Any]:
    """A row in processes of its own, with NCCL's logs for the fabric row."""
    environment = {}
    if row.recipe == "fabric" and row.device == "cuda":
        environment = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": str(out / "nccl-%h-%p.log")}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={row.gpus}",
               __file__, "--row", json.dumps(dataclasses.asdict(row))]
    return {**dataclasses.asdict(row), **result_of(command, 300, environment)}


def transport_of(out: Path) -> str | None:
    """What the transport verdict says of the logs of the fabric row; None without logs."""
    from training.transport import verdict
    from training.transport_reader import read_logs

    logs = sorted(out.glob("nccl-*.log"))
    return verdict(read_logs(logs)).verdict if logs else None


def loss_gap(results: list[dict[str, Any]]) -> float | None:
    """The largest relative difference of a strong row's losses from those of one GPU; None without rows."""
    strong = {r["gpus"]: r["losses"] for r in results if r["scaling"] == "strong" and r.get("losses")}
    pairs = [(a, b) for n, losses in strong.items() if n > 1 and 1 in strong
             for a, b in zip(losses, strong[1], strict=True)]
    return max((abs(a - b) / abs(b) for a, b in pairs), default=None)


def table(results: list[dict[str, Any]]) -> str:
    """Markdown. Efficiency: tokens/s of a GPU against those of one GPU in the row of the same kind."""
    one = {r["scaling"]: r["tokens_per_second_per_gpu"] for r in results
           if r["recipe"] == "full" and r["gpus"] == 1 and "tokens_per_second_per_gpu" in r}
    lines = ["| recipe | GPUs | batch of a GPU | scaling | ms/step | tokens/s a GPU | of one GPU | peak GiB "
             "| predicted | exposed communication |", "|" + "---|" * 10]
    for r in results:
        if r["recipe"] == "fabric":
            continue
        cells = [r["recipe"], str(r["gpus"]), str(r["batch"]), r["scaling"]]
        if "step_ms" in r:
            rate = r["tokens_per_second_per_gpu"]
            share = rate / one[r["scaling"]] if r["recipe"] in ("full", "hybrid") and r["scaling"] in one else None
            cells += [f"{r['step_ms']:.1f}", f"{rate:,.0f}", _percent(share), _gib(r.get("peak_gib")),
                      _gib(r.get("predicted_gib")), _percent(r.get("exposed_communication"))]
        else:
            cells += [r.get("error", "?"), *[""] * 5]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"


def _gib(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def main() -> None:
    """Parse the command line and run."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--gpus", type=int, help="by default all; on a CPU 2 processes")
    parser.add_argument("--batch", type=int, default=16, help="sequences of a GPU (weak) or of all (strong)")
    parser.add_argument("--only", default="", help=f"recipes to run, of {', '.join(RECIPES)}")
    parser.add_argument("--out", type=Path, default=Path("out/scaling"), help="folder for results and NCCL's logs")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.row:
        run_rank(Row(**json.loads(arguments.row)))
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    gpus = arguments.gpus or (torch.cuda.device_count() if arguments.device == "cuda" else 2)
    only = [name for name in arguments.only.split(",") if name]
    results = []
    for row in rows(gpus, arguments.batch, arguments.device):
        if not only or row.recipe in only:
            results.append(run_row(row, arguments.out.absolute()))
            told = {k: v for k, v in results[-1].items() if k not in ("milliseconds", "losses")}
            print(told, file=sys.stderr, flush=True)
    told = {"rows": results, "loss_gap": loss_gap(results), "transport": transport_of(arguments.out)}
    (arguments.out / "scaling.json").write_text(json.dumps(told, indent=1) + "\n")
    print(table(results))
    for r in results:
        if r["recipe"] == "fabric" and "plain_gb_s" in r:
            print(f"all-reduce of {r['size_mib']:.0f} MiB: {r['check_gb_s']:.1f} GB/s by the fabric check, "
                  f"{r['plain_gb_s']:.1f} by plain all-reduces")
    print(f"losses against one GPU, at most apart: {_percent(told['loss_gap']) or 'not measured'}; "
          f"transport: {told['transport'] or 'no NCCL logs'}")


if __name__ == "__main__":
    main()
