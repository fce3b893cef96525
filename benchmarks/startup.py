"""From the start of a process to its first optimizer step, with nothing compiled yet and after a restart.

    python benchmarks/startup.py [--out FILE.json] [--precision fp8] [--restarts 2]

Qwen2.5-1.5B's shape, its weights in a local folder, one GPU, through the trainer's own code. Each start is a
process of its own; the first finds an empty compile cache, the others what the first left. Prints a Markdown
table of phases. Needs a CUDA GPU, torch and transformers; no Ray (a job's own phases stand in its summary.json).
`--device cpu` runs a small model without compilation, to see that the script works.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.fresh_process import result_of, tell  # noqa: E402
from benchmarks.throughput import ARCHITECTURE, SEED, SEQUENCE  # noqa: E402

SMALL = {**ARCHITECTURE, "vocab_size": 1024, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
         "num_attention_heads": 4}
BATCH = 8


def make_weights(folder: Path, architecture: dict[str, Any]) -> None:
    """A checkpoint as the Hub has it: bf16 safetensors with a config.json."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    fields = {key: value for key, value in architecture.items() if key != "model_type"}
    torch.manual_seed(SEED)
    config = AutoConfig.for_model(architecture["model_type"], **fields)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)


def start(weights_folder: Path, device_type: str, precision: str) -> dict[str, Any]:
    """The phases of this process, in the order of training/train.py."""
    import torch
    import torch.distributed as dist

    from training import data, model, parallel, step
    from training.config import ModelConfig, OptimizerConfig, ParallelConfig, TrainConfig
    from training.pretrained import Pretrained
    from training.startup import Startup

    startup = Startup()
    startup.ended("imports")
    device = torch.device(device_type, 0) if device_type == "cuda" else torch.device("cpu")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29532", RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
    dist.init_process_group("nccl" if device_type == "cuda" else "gloo")
    dist.all_reduce(torch.ones((), device=device))
    startup.ended("process_group")

    plain = ParallelConfig(sharding="full", recompute="none", reshard_after_forward=False, reduce_dtype="fp32")
    config = TrainConfig(
        model=ModelConfig(name=str(weights_folder)), parallel=plain, seed=SEED,
        sequence_length=SEQUENCE if device_type == "cuda" else 64, micro_batch=BATCH, accumulation=1)
    architecture = model.read_config(config.model)
    sequences = data.open_data(config, architecture.vocab_size)
    startup.ended("inputs")

    mesh = parallel.make_mesh(config.parallel, 1, 1, device_type)
    pretrained = Pretrained.load(config.model, architecture)
    trained = parallel.build(architecture, config.parallel, mesh, device, seed=SEED, precision=precision,
                             pretrained=pretrained)
    optimizer = step.make_optimizer(trained, OptimizerConfig())
    startup.ended("weights")

    batches = list(data.micro_batches(sequences, config, 1, 0, 1, device))
    loss, _ = step.train_step(trained, optimizer, mesh, batches, learning_rate=1e-5, clip_norm=1.0)
    found = loss.item()
    startup.ended("first_step")
    return {**startup.record(0), "loss": found, "torch": torch.__version__,
            "device": torch.cuda.get_device_name() if device_type == "cuda" else "cpu"}


def in_fresh_process(folder: Path, cache: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """`start` in a process of its own."""
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(cache / "torchinductor"), "TRITON_CACHE_DIR": str(cache / "triton")}
    command = [sys.executable, __file__, "--one", str(folder), "--device", arguments.device,
               "--precision", arguments.precision]
    result = result_of(command, 600, caches)
    if "error" in result:
        sys.exit(f"a start failed: {result['error']}")
    return result


def run_all(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """One start with an empty cache, then the restarts."""
    with tempfile.TemporaryDirectory(prefix="eagleray-startup-") as temporary:
        folder, cache = Path(temporary) / "weights", Path(temporary) / "cache"
        for name in ("torchinductor", "triton"):
            (cache / name).mkdir(parents=True)
        make_weights(folder, ARCHITECTURE if arguments.device == "cuda" else SMALL)
        found = []
        for number in range(arguments.restarts + 1):
            result = in_fresh_process(folder, cache, arguments)
            found.append({"start": "restart" if number else "first start", **result})
            print(found[-1], file=sys.stderr, flush=True)
    return found


def table(results: list[dict[str, Any]]) -> str:
    """Markdown; seconds."""
    phases = list(results[0]["seconds"])
    lines = ["| start | " + " | ".join(phase.replace("_", " ") for phase in phases)
             + " | total | graphs compiled | from the cache |", "|---" * (len(phases) + 4) + "|"]
    for result in results:
        graphs = result["compiled"] or {"anew": 0, "from_cache": 0}
        seconds = " | ".join(f"{result['seconds'][phase]:.1f}" for phase in phases)
        lines.append(f"| {result['start']} | {seconds} | {result['total']:.1f} | {graphs['anew']} "
                     f"| {graphs['from_cache']} |")
    return "\n".join(lines)


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, help="write all results to this JSON file")
    parser.add_argument("--restarts", type=int, default=2, help="starts after the first one")
    parser.add_argument("--precision", choices=("bf16", "fp8"), default="bf16")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--one", type=Path, metavar="WEIGHTS", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        tell(start(arguments.one, arguments.device, arguments.precision))
        return
    results = run_all(arguments)
    if arguments.out:
        arguments.out.write_text(json.dumps(results, indent=1) + "\n")
    print(table(results))


if __name__ == "__main__":
    main()
