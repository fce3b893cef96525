"""What one step says about itself: loss, speed, model FLOP/s utilisation (MFU), memory."""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig

from training.model import CausalLMWithLoss, is_mixture
from training.storage import RunFolder

_FILE = "metrics.jsonl"
_GPUS: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "gpus.json").read_text())["gpus"]


def peak_flops(device: torch.device) -> float | None:
    """Dense bf16 FLOP/s of this device by its datasheet; None where the table does not have it."""
    if device.type != "cuda":
        return None
    return named_peak_flops(torch.cuda.get_device_name(device))


def named_peak_flops(device_name: str) -> float | None:
    """The same by the name that CUDA gives the device, such as `NVIDIA L4`."""
    found = [gpu for gpu in _GPUS.values() if gpu["device_name"] in device_name]
    # `NVIDIA L40S` holds both L4 and L40S
    best = max(found, key=lambda gpu: len(gpu["device_name"]), default=None)
    return None if best is None else best["bf16_tflops"] * 1e12


def flops_per_token(trained: CausalLMWithLoss, config: PretrainedConfig, sequence_length: int) -> float | None:
    """Training FLOPs a token: 6 for each weight in a matrix product, and causal attention at half its square.

    None for mixtures of experts, whose tokens meet only some of the weights.
    """
    if is_mixture(config):
        return None
    text = config.get_text_config()
    tables = {id(m.weight) for m in trained.modules() if isinstance(m, nn.Embedding)}
    matrices = sum(p.numel() for p in trained.parameters() if p.ndim >= 2 and id(p) not in tables)
    matrices += trained.head.weight.numel() if id(trained.head.weight) in tables else 0
    heads = text.num_attention_heads
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // heads
    return 6.0 * matrices + 6.0 * text.num_hidden_layers * heads * head_dim * sequence_length


def memory_gib(device: torch.device) -> float:
    """Highest memory so far in GiB: allocated on the GPU, or resident of the process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


class StepMeter:
    """Turns the end of each step into one record.

    Args:
        tokens: of all ranks in one step.
        world: ranks.
        flops_a_token: from `flops_per_token`.
        device: of this rank.
    """

    def __init__(self, tokens: int, world: int, flops_a_token: float | None, device: torch.device) -> None:
        self._tokens, self._device = tokens, device
        peak = peak_flops(device)
        self._mfu_a_rate = flops_a_token / (peak * world) if flops_a_token and peak else None
        self.start()

    def start(self) -> None:
        """The next step begins now; what lay before (a checkpoint) belongs to none."""
        self._began = time.perf_counter()

    def record(self, step: int, loss: float, grad_norm: float, learning_rate: float) -> dict[str, Any]:
        """The record of a step that ends now."""
        seconds = time.perf_counter() - self._began
        self.start()
        rate = self._tokens / seconds
        return {
            "step": step,
            "loss": loss,
            "grad_norm": grad_norm,
            "learning_rate": learning_rate,
            "tokens_per_second": rate,
            "step_seconds": seconds,
            "mfu": None if self._mfu_a_rate is None else rate * self._mfu_a_rate,
            "memory_gib": memory_gib(self._device),
            "time": time.time(),
        }


class MetricsLog:
    """metrics.jsonl, one line a step. On a disk a line is there at once; on S3 after `flush`.

    Args:
        folder: of the run.
        resumed_at: lines of later steps are dropped, for they will be trained again.
        steps: length of the run.
        notes: lines for people, shown before the first step.
    """

    def __init__(self, folder: RunFolder, resumed_at: int, steps: int, notes: Sequence[str] = ()) -> None:
        self._folder, self._steps = folder, steps
        for note in notes:
            print(note, flush=True)
        if resumed_at:
            print(f"resumed after step {resumed_at}", flush=True)
        self._lines = [json.dumps(record) for record in read_metrics(folder) if record["step"] <= resumed_at]
        self._write()

    def add(self, record: dict[str, Any]) -> None:
        """Write one record, and print it for people."""
        line = json.dumps(record)
        self._lines.append(line)
        if self._folder.is_local:
            self._folder.append_line(_FILE, line)
        print(for_people(record, self._steps), flush=True)

    def flush(self) -> None:
        """Bring all lines to storage that cannot append."""
        if not self._folder.is_local:
            self._write()

    def _write(self) -> None:
        self._folder.write_text(_FILE, "".join(line + "\n" for line in self._lines))


def read_metrics(folder: RunFolder) -> list[dict[str, Any]]:
    """The records of a run; a last line cut short by a crash is left out."""
    records = []
    for line in (folder.read_text(_FILE) or "").splitlines():
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return records


def for_people(record: dict[str, Any], steps: int) -> str:
    """`step   20/200  loss 5.8123  grad 1.20  lr 2.0e-05  12,345 tokens/s  0.21 s  MFU 47.1 %  10.2 GiB`."""
    width = len(str(steps))
    parts = [
        f"step {record['step']:>{width}}/{steps}",
        f"loss {record['loss']:.4f}",
        f"grad {record['grad_norm']:.2f}",
        f"lr {record['learning_rate']:.1e}",
        f"{record['tokens_per_second']:,.0f} tokens/s",
        f"{record['step_seconds']:.2f} s",
    ]
    if record["mfu"] is not None:
        parts.append(f"MFU {100 * record['mfu']:.1f} %")
    return "  ".join([*parts, f"{record['memory_gib']:.1f} GiB"])
