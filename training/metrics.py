"""What one step says about itself: loss, speed, model FLOP/s utilisation (MFU), memory."""

from __future__ import annotations

import json
import math
import resource
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from training.model import CausalLMWithLoss, is_mixture
from training.storage import RunFolder

_FILE = "metrics.jsonl"
_WINDOW = 100
"""Steps that the percentiles of a record look back on."""
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


def memory(device: torch.device) -> dict[str, Any]:
    """Of this rank, highest so far: `memory_gib` that tensors had, `memory_reserved_gib` taken for them.

    `alloc_retries`: times that no memory was left until PyTorch gave its reserve back, which costs a wait.
    On a CPU `memory_gib` is what the process had resident, and the others are None.
    """
    if device.type == "cuda":
        found = torch.cuda.memory_stats(device)
        return {
            "memory_gib": found["allocated_bytes.all.peak"] / 2**30,
            "memory_reserved_gib": found["reserved_bytes.all.peak"] / 2**30,
            "alloc_retries": found["num_alloc_retries"],
        }
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"memory_gib": resident, "memory_reserved_gib": None, "alloc_retries": None}


def percentiles(seconds: Sequence[float]) -> dict[str, float] | None:
    """p50, p90 and p99; None of nothing."""
    if not seconds:
        return None
    found = np.percentile(np.asarray(seconds), (50, 90, 99))
    return dict(zip(("p50", "p90", "p99"), map(float, found), strict=True))


@dataclass(frozen=True)
class LaunchedStep:
    """A step that the host has handed to the device, which may not be through with it yet.

    `numbers` are loss and gradient norm in the host's memory, there once `ended` has passed. `data_seconds`: that
    the host waited for the step's tokens.
    """

    step: int
    learning_rate: float
    numbers: Tensor
    began: _Moment
    ended: _Moment
    data_seconds: float = 0.0


class StepMeter:
    """Turns each step into one record.

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
        self._recent: deque[float] = deque(maxlen=_WINDOW)
        self._is_first = True  # compiles and allocates: no measure for the others
        self.start()

    def start(self) -> None:
        """The next step begins now; what lay before (a checkpoint) belongs to none."""
        self._began = _Moment(self._device)

    def launched(self, step: int, loss: Tensor, grad_norm: Tensor, learning_rate: float,
                 data_seconds: float = 0.0) -> LaunchedStep:
        """Mark the end of a step on the device's own clock. Does not wait for it."""
        found = torch.stack([loss.float(), grad_norm.float()])
        # Copied right behind the step: asked for later, it would stand in line behind the next step.
        numbers = torch.empty(2, pin_memory=found.is_cuda).copy_(found, non_blocking=True)
        began, self._began = self._began, _Moment(self._device)
        return LaunchedStep(step, learning_rate, numbers, began, self._began, data_seconds)

    def record(self, launched: LaunchedStep) -> dict[str, Any]:
        """The record of a step; waits until it has ended, and not for what was launched after it.

        A step whose loss or gradient norm is not finite was skipped (step.py): its record has `skipped` and
        the `reason`, and None where a number would be none in JSON.
        """
        seconds = launched.began.seconds_until(launched.ended)
        if not self._is_first:
            self._recent.append(seconds)
        self._is_first = False
        rate = self._tokens / seconds
        loss, norm = launched.numbers.tolist()
        record = {
            "step": launched.step,
            "loss": _finite(loss),
            "grad_norm": _finite(norm),
            "learning_rate": launched.learning_rate,
            "tokens_per_second": rate,
            "step_seconds": seconds,
            "data_seconds": launched.data_seconds,
            **{f"step_seconds_{name}": value for name, value in (percentiles(self._recent) or {}).items()},
            "mfu": None if self._mfu_a_rate is None else rate * self._mfu_a_rate,
            **memory(self._device),
            "time": time.time(),
        }
        if None in (record["loss"], record["grad_norm"]):
            what = f"loss is {loss}" if record["loss"] is None else f"gradient norm is {norm}"
            record |= {"skipped": True, "reason": what}
        return record


class _Moment:
    """A point of time: on a GPU when it has done what was launched before, on a CPU now."""

    def __init__(self, device: torch.device) -> None:
        self._event = torch.cuda.Event(enable_timing=True) if device.type == "cuda" else None
        if self._event is not None:
            self._event.record(torch.cuda.current_stream(device))
        self._now = time.perf_counter()

    @property
    def has_passed(self) -> bool:
        """Whether the device has come here."""
        return self._event is None or self._event.query()

    def seconds_until(self, later: _Moment) -> float:
        """Waits for the later one."""
        if self._event is None or later._event is None:
            return later._now - self._now
        later._event.synchronize()
        return self._event.elapsed_time(later._event) / 1e3


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


class TakesRecords(Protocol):
    """Who else wants the records (live_metrics.py)."""

    def note(self, record: Mapping[str, Any]) -> None:
        """One record, with what was noted for it."""


class MetricsLog:
    """metrics.jsonl, one line a step. On a disk a line is there at once; on S3 after `flush`.

    Args:
        folder: of the run.
        resumed_at: lines of later steps are dropped, for they will be trained again.
        steps: length of the run.
        notes: lines for people, shown before the first step.
        live: gets each record too.
    """

    def __init__(self, folder: RunFolder, resumed_at: int, steps: int, notes: Sequence[str] = (),
                 live: TakesRecords | None = None) -> None:
        self._folder, self._steps, self._live = folder, steps, live
        self._noted: dict[str, Any] = {}
        self._is_behind = False
        for note in notes:
            print(note, flush=True)
        if resumed_at:
            print(f"resumed after step {resumed_at}", flush=True)
        self._lines = [json.dumps(record) for record in read_metrics(folder) if record["step"] <= resumed_at]
        self._write()

    def note(self, **values: Any) -> None:
        """Put values into the next record; from any thread."""
        self._noted = {**self._noted, **values}

    def add(self, record: dict[str, Any]) -> None:
        """Write one record, and print it for people."""
        noted, self._noted = self._noted, {}
        whole = {**record, **noted}
        line = json.dumps(whole, allow_nan=False)
        self._lines.append(line)
        if self._live is not None:
            self._live.note(whole)
        if self._folder.is_local and not self._is_behind:
            try:
                self._folder.append_line(_FILE, line)
            except OSError as error:  # no reason to lose the training; the next checkpoint brings all lines along
                self._is_behind = True
                print(f"WARNING: {_FILE} stays behind: {error}", flush=True)
        print(for_people(record, self._steps), flush=True)

    def flush(self) -> None:
        """Bring all lines to storage that cannot append, or failed to; from any thread."""
        if self._is_behind or not self._folder.is_local:
            self._write()

    def _write(self) -> None:
        self._is_behind = False
        try:
            self._folder.write_text(_FILE, "".join(line + "\n" for line in list(self._lines)))
        except OSError:
            self._is_behind = self._folder.is_local
            raise


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
    if record.get("skipped"):
        return (f"step {record['step']:>{width}}/{steps}  SKIPPED: {record['reason']} (sequences "
                f"{record['sequences'][0]} to {record['sequences'][1]} of the data); the weights stay as they are")
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
