"""What a checkpoint costs the training: a step without saving, a save that is waited for, one beside it, a load.

    python benchmarks/checkpoint_stall.py [--out FILE.json] [--steps 40] [--storage FOLDER]

One rank on the device that is there, through the trainer's own step and `Checkpoints`; Qwen2.5-1.5B's shape on a
GPU, a small model on a CPU. Prints a Markdown table. `--storage` is where the checkpoints go: a folder on the disk
to be measured, or s3://bucket/prefix.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.throughput import ARCHITECTURE, SEQUENCE, trainer  # noqa: E402

SMALL = {**ARCHITECTURE, "vocab_size": 8192, "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 8,
         "num_attention_heads": 4}
WARM_UP = 3


class Trainer:
    """One rank of the trainer, ready to step."""

    def __init__(self, storage: str) -> None:
        import torch
        import torch.distributed as dist

        from training.checkpointing import Checkpoints
        from training.config import CheckpointConfig
        from training.storage import RunFolder, absolute

        kind = "cuda" if torch.cuda.is_available() else "cpu"
        self.device = torch.device(kind)
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29534", RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
        dist.init_process_group("nccl" if kind == "cuda" else "gloo")
        written = ARCHITECTURE if kind == "cuda" else SMALL
        self.trained, self.optimizer, self.mesh = trainer(architecture=written, device=kind)
        folder = RunFolder(absolute(storage), "checkpoint-stall")
        self.checkpoints = Checkpoints(folder, CheckpointConfig(keep=1), self.trained.model, self.optimizer)
        shape = (8, SEQUENCE) if kind == "cuda" else (2, 256)
        self._ids = torch.randint(0, written["vocab_size"], shape, device=self.device)

    def step(self) -> float:
        """Seconds of one step, to its end on the device."""
        from training import step

        began = time.perf_counter()
        loss, _ = step.train_step(self.trained, self.optimizer, self.mesh, [(self._ids, self._ids)],
                                  learning_rate=1e-5, clip_norm=1.0)
        loss.item()
        return time.perf_counter() - began

    def stall(self, number: int) -> float:
        """Seconds for which `save` holds the training."""
        began = time.perf_counter()
        self.checkpoints.save(number)
        return time.perf_counter() - began


def measure(storage: str, steps: int) -> dict[str, Any]:
    """All figures of this device; seconds, and GiB of one checkpoint."""
    import torch

    trainer = Trainer(storage)
    for _ in range(WARM_UP):
        trainer.step()
    alone = [trainer.step() for _ in range(steps)]
    first = trainer.stall(1)  # makes the buffers in host memory
    trainer.checkpoints.wait()
    began = time.perf_counter()
    trainer.checkpoints.save_now(2)
    waited = time.perf_counter() - began
    held, began = trainer.stall(3), time.perf_counter()
    beside = [trainer.step()]
    while trainer.checkpoints.is_saving:
        beside.append(trainer.step())
    background = time.perf_counter() - began
    trainer.checkpoints.wait()
    began = time.perf_counter()
    trainer.checkpoints.resume()
    load = time.perf_counter() - began
    on_gpu = trainer.device.type == "cuda"
    size = 12 * sum(p.numel() for p in trainer.trained.parameters())  # weights and two moments in fp32
    return {
        "device": torch.cuda.get_device_name() if on_gpu else f"cpu, {torch.get_num_threads()} threads",
        "torch": torch.__version__, "python": sys.version.split()[0], "gib": size / 2**30,
        "step": statistics.median(alone), "synchronous": waited, "first_stall": first, "stall": held,
        "background": background, "step_while_saving": statistics.median(beside), "load": load,
    }


def table(found: dict[str, Any]) -> str:
    """Markdown."""
    rows = [
        ("a step, nothing being saved", found["step"]), ("save, waited for", found["synchronous"]),
        ("save beside the training: the stall", found["stall"]),
        ("the same, the first of a process", found["first_stall"]),
        ("writing beside the training", found["background"]),
        ("a step meanwhile", found["step_while_saving"]), ("load", found["load"]),
    ]
    head = f"{found['device']}, torch {found['torch']}, Python {found['python']}; {found['gib']:.2f} GiB"
    share = 100 * found["stall"] / (100 * found["step"])
    lines = [f"| {what} | {seconds:.3f} |" for what, seconds in rows]
    said = f"Saved every 100 steps, the stall is {share:.2f} % of a step on average."
    return "\n".join([head, "", "| what | seconds |", "|---|---|", *lines, "", said])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--storage")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="eagleray-checkpoints-") as temporary:
        found = measure(arguments.storage or temporary, arguments.steps)
    if arguments.out:
        arguments.out.write_text(json.dumps(found, indent=2) + "\n")
    print(table(found))


if __name__ == "__main__":
    main()
