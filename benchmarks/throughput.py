"""Tokens a second on one GPU: this trainer beside public recipes, in one run of one script.

    python benchmarks/throughput.py [--out FILE.json] [--only ours,sample]

Qwen2.5-1.5B's shape with random weights, random token ids, sequences of 2048, each recipe at several
batches, each in a process of its own. Prints a Markdown table, median of the timed steps. Needs a CUDA
GPU, torch, transformers, accelerate and, for its row, liger-kernel; no Ray.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.fresh_process import result_of, tell  # noqa: E402

SEQUENCE, WARM_UP, TIMED, SEED = 2048, 3, 10, 1
ARCHITECTURE: dict[str, Any] = {
    "model_type": "qwen2", "vocab_size": 151936, "hidden_size": 1536, "intermediate_size": 8960,
    "num_hidden_layers": 28, "num_attention_heads": 12, "num_key_value_heads": 2,
    "max_position_embeddings": 32768, "tie_word_embeddings": True, "rope_theta": 1e6,
}
# 6 x (matrix parameters with the head) + 6 x layers x heads x head size x sequence (causal: half)
FLOPS_PER_TOKEN, PEAK_FLOPS = 9.79e9, {"NVIDIA H200": 989e12, "NVIDIA H100 80GB HBM3": 989e12, "NVIDIA L4": 121e12}
RUNS: dict[str, tuple[int, ...]] = {
    "ours": (8, 24, 32, 40),
    "ours-fp8": (8, 24, 32),
    "hf-trainer": (8,),
    "hf-trainer-liger": (16,),
    "sample": (12,),
    "accelerate-fsdp2-compile": (12,),
}

AS_IN_TORCH_2_13 = {"TORCHINDUCTOR_MIX_ORDER_REDUCTION_ALLOW_MULTI_STAGES": "1"}
"""A default of the image's torch that older ones lack, for all recipes that compile: 0.5 % for ours."""

Step = Callable[[Any], Any]


def tokens(batch: int) -> Any:
    """[batch, SEQUENCE + 1] random token ids on the GPU."""
    import torch

    return torch.randint(0, ARCHITECTURE["vocab_size"], (batch, SEQUENCE + 1), device="cuda")


def trainer(
    precision: str = "bf16", *, architecture: dict[str, Any] = ARCHITECTURE, device: str = "cuda", seed: int = SEED,
    optimizer: Any = None,
) -> tuple[Any, Any, Any]:
    """This trainer on one rank, with random weights: model, optimizer, mesh. `optimizer`: its OptimizerConfig."""
    import torch

    from training import model, parallel, step
    from training.config import ModelConfig, OptimizerConfig, ParallelConfig

    config = ParallelConfig(sharding="full", recompute="none", reshard_after_forward=False, reduce_dtype="fp32")
    mesh = parallel.make_mesh(config, 1, 1, device)
    shape = model.read_config(ModelConfig(weights="random", architecture=architecture))
    trained = parallel.build(shape, config, mesh, torch.device(device, 0), seed=seed, precision=precision)
    return trained, step.make_optimizer(trained, optimizer or OptimizerConfig()), mesh


def ours(precision: str) -> Step:
    """This trainer: fp32 weights, compiled layers, chunked loss, AdamW that writes the bf16 copy."""
    from training import step

    trained, optimizer, mesh = trainer(precision)

    def run(ids: Any) -> Any:
        pair = (ids[:, :-1].contiguous(), ids[:, 1:].contiguous())
        return step.train_step(trained, optimizer, mesh, [pair], learning_rate=1e-5, clip_norm=1.0)[0]

    return run


def sample() -> Step:
    """AWS's sample: FSDP1 wrapped by size, weights and AdamW state in bf16, the model's own loss."""
    import functools

    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP  # noqa: N817
    from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy

    policy = functools.partial(size_based_auto_wrap_policy, min_num_params=1_000_000)
    model = FSDP(hf_model(torch.bfloat16), auto_wrap_policy=policy, device_id=torch.cuda.current_device(),
                 use_orig_params=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)

    def run(ids: Any) -> Any:
        loss = model(input_ids=ids[:, :-1], labels=ids[:, :-1]).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return run


def accelerate_fsdp2_compile() -> Step:
    """Hugging Face Accelerate: FSDP2 per decoder layer, bf16, regional compilation."""
    import torch
    from accelerate import Accelerator  # pyright: ignore[reportMissingImports]
    from accelerate.utils import (  # pyright: ignore[reportMissingImports]
        FullyShardedDataParallelPlugin,
        TorchDynamoPlugin,
    )

    accelerator = Accelerator(
        mixed_precision="bf16",
        fsdp_plugin=FullyShardedDataParallelPlugin(
            fsdp_version=2, reshard_after_forward=False, auto_wrap_policy="transformer_based_wrap",
            transformer_cls_names_to_wrap=["Qwen2DecoderLayer"]),
        dynamo_plugin=TorchDynamoPlugin(backend="inductor", use_regional_compilation=True),
    )
    model = hf_model(torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    model, optimizer = accelerator.prepare(model, optimizer)

    def run(ids: Any) -> Any:
        loss = model(input_ids=ids[:, :-1], labels=ids[:, :-1]).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return run


def hf_model(dtype: Any, architecture: dict[str, Any] = ARCHITECTURE, device: str = "cuda") -> Any:
    """The transformers model with random weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(SEED)
    fields = {key: value for key, value in architecture.items() if key != "model_type"}
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(
            AutoConfig.for_model("qwen2", **fields, use_cache=False), dtype=dtype, attn_implementation="sdpa")
    return model.train()


def time_steps(step: Step, batch: int) -> dict[str, Any]:
    """Milliseconds of each timed step, and the last loss. The host never waits, as it does not in training."""
    import torch

    torch.manual_seed(SEED)
    marks, loss = [torch.cuda.Event(enable_timing=True) for _ in range(WARM_UP + TIMED + 1)], torch.zeros(())
    marks[0].record()
    for mark in marks[1:]:
        loss = step(tokens(batch))
        mark.record()
    torch.cuda.synchronize()
    milliseconds = [a.elapsed_time(b) for a, b in itertools.pairwise(marks)]
    return {"milliseconds": milliseconds[WARM_UP:], "loss": float(loss)}


def hf_trainer(batch: int, liger: bool, fsdp2: bool = False) -> dict[str, Any]:
    """Hugging Face Trainer as its documentation shows it: bf16, fused AdamW, or with Liger kernels or FSDP2."""
    import torch
    from transformers import Trainer, TrainerCallback, TrainingArguments

    marks, losses = [], []

    class Clock(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            marks.append(torch.cuda.Event(enable_timing=True))
            marks[-1].record()

        def on_log(self, *_: Any, logs: dict[str, float] | None = None, **__: Any) -> None:
            losses.extend([logs["loss"]] if logs and "loss" in logs else [])

    torch.manual_seed(SEED)
    world = int(os.environ["WORLD_SIZE"])
    rows = torch.randint(0, ARCHITECTURE["vocab_size"], (world * batch * (WARM_UP + TIMED), SEQUENCE))
    sharded: dict[str, Any] = {"fsdp": "full_shard auto_wrap", "fsdp_config": {
        "fsdp_version": 2, "transformer_layer_cls_to_wrap": ["Qwen2DecoderLayer"]}}
    arguments = TrainingArguments(
        output_dir="/tmp/throughput", per_device_train_batch_size=batch, max_steps=WARM_UP + TIMED, bf16=True,
        optim="adamw_torch_fused", use_liger_kernel=liger, report_to=[], save_strategy="no",
        logging_steps=WARM_UP + TIMED,
        learning_rate=1e-5, disable_tqdm=True, **(sharded if fsdp2 else {}))
    Trainer(model=hf_model(torch.float32), args=arguments, callbacks=[Clock()],
            train_dataset=[{"input_ids": row, "labels": row} for row in rows]).train()  # pyright: ignore[reportArgumentType]
    torch.cuda.synchronize()
    milliseconds = [a.elapsed_time(b) for a, b in itertools.pairwise(marks)]
    return {"milliseconds": milliseconds[WARM_UP - 1:], "loss": losses[-1]}


def run_one(recipe: str, batch: int) -> dict[str, Any]:
    """One recipe at one batch, in this process."""
    import torch
    import torch.distributed as dist

    started = time.perf_counter()
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29531", RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
    torch.cuda.set_device(0)
    try:
        if recipe.startswith("hf-trainer"):
            measured = hf_trainer(batch, liger=recipe.endswith("liger"))
        else:
            dist.init_process_group("nccl")
            make = {"ours": lambda: ours("bf16"), "ours-fp8": lambda: ours("fp8"), "sample": sample,
                    "accelerate-fsdp2-compile": accelerate_fsdp2_compile}[recipe]
            measured = time_steps(make(), batch)
    except torch.OutOfMemoryError:
        return {"recipe": recipe, "batch": batch, "error": "out of memory"}
    step = statistics.median(measured["milliseconds"])
    rate = batch * SEQUENCE / step * 1e3
    device = torch.cuda.get_device_name()
    return {
        "recipe": recipe, "batch": batch, "step_ms": step, "tokens_per_second": rate,
        "mfu": rate * FLOPS_PER_TOKEN / PEAK_FLOPS[device] if device in PEAK_FLOPS else None,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30, "loss": measured["loss"], "device": device,
        "torch": torch.__version__, "seconds": time.perf_counter() - started,
        "milliseconds": measured["milliseconds"],
    }


def run_all(only: list[str]) -> list[dict[str, Any]]:
    """Every recipe and batch, each in a fresh process."""
    results = []
    for recipe, batches in RUNS.items():
        for batch in batches if not only or recipe in only else ():
            command = [sys.executable, __file__, "--one", recipe, str(batch)]
            results.append({"recipe": recipe, "batch": batch, **result_of(command, 300, AS_IN_TORCH_2_13)})
            print({k: v for k, v in results[-1].items() if k != "milliseconds"}, file=sys.stderr, flush=True)
    return results


def table(results: list[dict[str, Any]]) -> str:
    """Markdown."""
    lines = ["| recipe | batch | ms/step | tokens/s | MFU | peak GiB |", "|---|---|---|---|---|---|"]
    for r in results:
        if "error" in r:
            lines.append(f"| {r['recipe']} | {r['batch']} | {r['error']} | | | |")
        else:
            mfu = f"{r['mfu']:.3f}" if r["mfu"] else ""
            lines.append(f"| {r['recipe']} | {r['batch']} | {r['step_ms']:.1f} | {r['tokens_per_second']:,.0f} "
                         f"| {mfu} | {r['peak_gib']:.1f} |")
    return "\n".join(lines)


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, help="write all results, with every step's time, to this JSON file")
    parser.add_argument("--only", default="", help=f"recipes to run, of {', '.join(RUNS)}")
    parser.add_argument("--one", nargs=2, metavar=("RECIPE", "BATCH"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        tell(run_one(arguments.one[0], int(arguments.one[1])))
        return
    results = run_all([name for name in arguments.only.split(",") if name])
    if arguments.out:
        arguments.out.write_text(json.dumps(results, indent=1) + "\n")
    print(table(results))


if __name__ == "__main__":
    main()
