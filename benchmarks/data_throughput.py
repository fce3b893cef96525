"""Whether data keeps up: text into tokens through Ray Data, tokens into batches, and how long steps wait for them.

    python -m benchmarks.data_throughput [--out FILE.json] [--megabytes 16] [--steps 40]

Runs on the CPUs of this machine, through the trainer's own code: the sources of Python's standard library as JSONL,
a tokenizer made from them, then whole jobs (`python -m training.train`) on random tokens, on token files, and on
token files with documents apart. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.checkpoint_stall import SMALL
from ops.corpus import write_corpus

ROOT = Path(__file__).resolve().parent.parent
SEQUENCE, BATCH = 2048, 8
"""Of the batches whose making is timed; what a GPU of the default job reads."""
_PART_BYTES = 1 << 20
_EPOCH = 10_000_000
"""Sequences whose shuffle is timed: 20 billion tokens."""


def write_documents(file: Path, megabytes: float) -> int:
    """Modules of the standard library, one a row, again and again until there is enough; how many rows."""
    library = Path(sysconfig.get_paths()["stdlib"])
    texts = [path.read_text(encoding="utf-8", errors="ignore") for path in sorted(library.glob("*.py"))]
    written = rows = 0
    with file.open("w") as stream:
        while written < megabytes * 1e6:
            written += stream.write(json.dumps({"text": texts[rows % len(texts)]}) + "\n")
            rows += 1
    return rows


def job(name: str, folder: Path, data: dict[str, Any], steps: int) -> dict[str, Any]:
    """train.json: one rank, the small model of the other benchmarks."""
    return {
        "name": name,
        "training": {
            "model": {"weights": "random", "architecture": SMALL}, "data": data, "steps": steps,
            "sequence_length": 256, "micro_batch": 2, "accumulation": 1, "fabric": {"seconds": 0},
            "checkpoint": {"every_steps": 0},
        },
        "placement": {"nodes": 1, "workers_per_node": 1, "device": "cpu", "backend": "gloo",
                      "storage": str(folder)},
    }


def tokenise(folder: Path, data: dict[str, Any]) -> dict[str, Any]:
    """Seconds through Ray Data on all cores, and through one process; documents and tokens. Leaves token files."""
    import ray

    from training import data as training_data
    from training import data_files
    from training.config import TrainJob
    from training.storage import RunFolder
    from training.tokenising import tokenise_first
    from training.tokenizer import open_tokenizer

    data_files.PART_BYTES = _PART_BYTES  # else the text of a benchmark is one part
    parsed = TrainJob.model_validate(job("tokens", folder / "runs", data, 1))
    ray.init(num_cpus=os.cpu_count(), include_dashboard=False, log_to_driver=False)
    warm = ray.remote(lambda: __import__("training.tokenising").__name__)  # imports take longer than a small text
    ray.get([warm.remote() for _ in range(os.cpu_count() or 1)])
    began = time.perf_counter()
    tokenise_first(parsed, RunFolder(str(folder / "runs"), "tokens"))
    through_ray = time.perf_counter() - began
    ray.shutdown()
    found = data_files.find_files(parsed.training.data)
    name, tokenizer, _ = open_tokenizer(parsed.training.data, parsed.training.model)
    began = time.perf_counter()
    index = training_data.tokenise(folder / "tokens", found, parsed.training.data, tokenizer, name)
    return {"ray_seconds": through_ray, "one_process_seconds": time.perf_counter() - began,
            "documents": index["documents"], "tokens": index["tokens"],
            "parts": len(data_files.parts(found))}


def making(tokens: Path) -> dict[str, float]:
    """Tokens a second that one thread makes batches of, by kind of data; seconds to shuffle an epoch."""
    import torch

    from training.config import DataConfig, TrainConfig
    from training.data import PackedTokens, Sequences, micro_batches, open_data

    plain = TrainConfig(sequence_length=SEQUENCE, micro_batch=BATCH, accumulation=1)

    def rate(data: DataConfig) -> float:
        config = plain.model_copy(update={"data": data})
        sequences: Sequences = open_data(config, SMALL["vocab_size"])
        return _a_second(lambda step: list(micro_batches(sequences, config, step, 0, 1, torch.device("cpu"))))

    many = np.broadcast_to(np.uint32(7), _EPOCH * SEQUENCE + 1)  # takes no memory
    began = time.perf_counter()
    PackedTokens(many, SEQUENCE, seed=1).row(0)
    shuffle = time.perf_counter() - began
    return {"random": rate(DataConfig()), "token files": rate(DataConfig(kind="tokens", path=str(tokens))),
            "token files, documents apart": rate(DataConfig(kind="tokens", path=str(tokens), documents="apart")),
            "shuffle_seconds": shuffle}


def _a_second(make: Callable[[int], Any], seconds: float = 3) -> float:
    """Tokens, of steps of BATCH sequences."""
    make(1)
    began, step = time.perf_counter(), 1
    while time.perf_counter() - began < seconds:
        step += 1
        make(step)
    return (step - 1) * BATCH * SEQUENCE / (time.perf_counter() - began)


def waiting(folder: Path, name: str, data: dict[str, Any], steps: int) -> dict[str, float]:
    """A whole job; the step's median seconds, and which share of all steps but the first two waited for data."""
    here = folder / name
    here.mkdir()
    (here / "train.json").write_text(json.dumps(job(name, folder / "runs", data, steps)))
    environment = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
    subprocess.run([sys.executable, "-m", "training.train", "train.json"], cwd=here, check=True, timeout=1800,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                   env={**environment, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"})
    lines = (folder / "runs" / name / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines][2:]
    seconds = [record["step_seconds"] for record in records]
    waited = [record["data_seconds"] for record in records]
    return {"step_seconds": statistics.median(seconds), "share": sum(waited) / sum(seconds),
            "most_waited_seconds": max(waited)}


def measure(folder: Path, megabytes: float, steps: int) -> dict[str, Any]:
    """All figures of this machine."""
    import ray
    import torch

    before = os.getloadavg()[0]
    _, tokenizer = write_corpus(folder / "corpus", SMALL["vocab_size"])
    (folder / "text").mkdir()
    write_documents(folder / "text" / "rows.jsonl", megabytes)
    text = {"kind": "jsonl", "path": str(folder / "text"), "tokenizer": str(tokenizer)}
    files = {"kind": "tokens", "path": str(folder / "tokens")}
    tokenised = tokenise(folder, text)
    kinds = {"random": {"kind": "random"}, "token files": files,
             "token files, documents apart": {**files, "documents": "apart"}}
    made = making(folder / "tokens")
    waited = {name: waiting(folder, name.replace(" ", "-").replace(",", ""), data, steps)
              for name, data in kinds.items()}
    return {
        "machine": f"{os.cpu_count()} CPU cores, load {before:.1f} before and {os.getloadavg()[0]:.1f} after; "
                   f"{platform.platform()}, Python {platform.python_version()}, ray {ray.__version__}, "
                   f"torch {torch.__version__}",
        "megabytes": megabytes, "tokenising": tokenised, "making": made, "waiting": waited,
    }


def table(found: dict[str, Any]) -> str:
    """Markdown."""
    said, made = found["tokenising"], found["making"]
    ways = {"through Ray Data, all cores": said["ray_seconds"], "one process": said["one_process_seconds"]}
    rows = [f"| {way} | {said['documents'] / seconds:,.0f} | {said['tokens'] / seconds:,.0f} |"
            for way, seconds in ways.items()]
    waits = [f"| {name} | {made[name] / 1e6:,.1f} | {1000 * one['step_seconds']:,.0f} | {100 * one['share']:.3f} | "
             f"{1000 * one['most_waited_seconds']:.1f} |" for name, one in found["waiting"].items()]
    return "\n".join([
        found["machine"], "",
        f"Tokenising {found['megabytes']:g} MB of JSONL: {said['documents']:,} documents, {said['tokens']:,} "
        f"tokens, {said['parts']} parts.", "",
        "| tokenising | documents/s | tokens/s |", "|---|---|---|", *rows, "",
        f"Shuffling an epoch of {_EPOCH:,} sequences: {made['shuffle_seconds']:.2f} s.", "",
        "| data | batches of one thread, million tokens/s | ms/step | waited for data, % of the steps | most, ms |",
        "|---|---|---|---|---|", *waits])


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description="Tokenising, reading and waiting for data, on CPUs.")
    options.add_argument("--out", type=Path)
    options.add_argument("--megabytes", type=float, default=16, help="of text to tokenise (default 16)")
    options.add_argument("--steps", type=int, default=40, help="of each job (default 40)")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="eagleray-data-") as folder:
        found = measure(Path(folder), chosen.megabytes, chosen.steps)
    if chosen.out:
        chosen.out.write_text(json.dumps(found, indent=2) + "\n")
    print(table(found))


if __name__ == "__main__":
    main()
