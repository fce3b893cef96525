"""The mathematics unchanged: this trainer against a plain Hugging Face loop, on real text.

    python benchmarks/parity.py [--device cpu] [--seed 1] [--only plain,ours-bf16] [--out FILE.json]

200 optimizer steps of Qwen2.5-1.5B's shape from the same random weights on the same text (sources of Python's
standard library), each recipe in a process of its own. The plain loop, eager transformers model, fp32 weights,
AdamW, logits in full, has bf16 come in two ways: by autocast, which keeps embeddings, norms and what layers add up
in fp32 (`plain`), and by a bf16 copy of the weights, as every FSDP trainer in mixed precision has it, this one too
(`plain-copy`). What lies between these two is bf16's own. As a control for what rounding alone does, `plain` with
each batch in halves whose gradients add up; then this trainer in bf16, and in fp8; then the gradients of one step,
all against fp64. Prints two Markdown tables. Needs a CUDA GPU of 140 GB, torch, transformers and tokenizers; no
Ray. `--device cpu` does all but fp8 with a model of a million parameters, in about three minutes.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.fresh_process import result_of, tell  # noqa: E402
from benchmarks.throughput import ARCHITECTURE, SEQUENCE, hf_model, trainer  # noqa: E402

PLAIN = {"plain": (1, "autocast"), "plain-halves": (2, "autocast"), "plain-copy": (1, "copy")}
"""By recipe: parts of a batch whose gradients add up, and how bf16 comes in."""
REFERENCES = ("plain", "plain-copy")
"""What the others are compared with."""
OURS = {"ours-bf16": "bf16", "ours-fp8": "fp8"}
"""Precision by recipe."""
SMOOTHED = 20


@dataclass(frozen=True)
class Work:
    """What all recipes do alike, on one device."""

    device: str
    architecture: dict[str, Any]
    sequence: int
    learning_rate: float
    gradient_tokens: int
    text_vocabulary: int
    recipes: tuple[str, ...] = (*PLAIN, *OURS, "gradients")
    steps: int = 200
    batch: int = 8
    seed: int = 1


SMALL = {"vocab_size": 2048, "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4,
         "num_attention_heads": 4, "max_position_embeddings": 512}
WORKS = {
    "cuda": Work("cuda", ARCHITECTURE, sequence=SEQUENCE, learning_rate=1e-4, gradient_tokens=1024,
                 text_vocabulary=16384),
    "cpu": Work("cpu", {**ARCHITECTURE, **SMALL}, sequence=128, learning_rate=1e-3, gradient_tokens=128,
                text_vocabulary=SMALL["vocab_size"], recipes=(*PLAIN, "ours-bf16", "gradients")),
}


def optimizer_config(work: Work) -> Any:
    """Of all recipes."""
    from training.config import OptimizerConfig

    return OptimizerConfig(learning_rate=work.learning_rate, warmup_steps=20, weight_decay=0.1, clip_norm=1.0)


def text_tokens(work: Work) -> Any:
    """[steps, batch, sequence + 1] token ids of the standard library's sources, cut into sequences and shuffled."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    files = sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py"))
    texts = [f.read_text(errors="ignore") for f in files if not {"site-packages", "test"} & set(f.parts)]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.train_from_iterator(texts[::5], trainers.BpeTrainer(
        vocab_size=work.text_vocabulary, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    ids = itertools.chain.from_iterable(encoded.ids for encoded in bpe.encode_batch(texts))
    needed = work.steps * work.batch * (work.sequence + 1)
    found = list(itertools.islice(ids, needed))
    turns = -(-needed // len(found))  # a small library is read again
    sequences = torch.tensor((found * turns)[:needed]).view(work.steps * work.batch, work.sequence + 1)
    order = torch.randperm(len(sequences), generator=torch.Generator().manual_seed(work.seed))
    return sequences[order].view(work.steps, work.batch, work.sequence + 1)


def ours(precision: str, work: Work) -> tuple[Any, Any, Any]:
    """This trainer: model, optimizer, mesh."""
    return trainer(precision, architecture=work.architecture, device=work.device, seed=work.seed,
                   optimizer=optimizer_config(work))


def plain(work: Work) -> Any:
    """The transformers model with the weights that this trainer would start from."""
    import torch

    state = ours("bf16", work)[0].model.state_dict()
    model = hf_model(torch.float32, work.architecture, work.device)
    model.load_state_dict(state)
    return model


def losses(recipe: str, ids: Any, work: Work) -> list[float]:
    """Loss of each step on [steps, batch, sequence + 1] ids."""
    from training.step import learning_rate

    config, found = optimizer_config(work), []
    run = plain_step(*PLAIN[recipe], work) if recipe in PLAIN else our_step(OURS[recipe], work)
    for number, batch in enumerate(ids, 1):
        found.append(run(batch.to(work.device), learning_rate(config, number, work.steps)))
    return [float(loss) for loss in found]


def our_step(precision: str, work: Work) -> Any:
    """One step of this trainer on [batch, sequence + 1] ids."""
    from training import step

    trained, optimizer, mesh = ours(precision, work)

    def run(ids: Any, rate: float) -> Any:
        pair = (ids[:, :-1].contiguous(), ids[:, 1:].contiguous())
        return step.train_step(trained, optimizer, mesh, [pair], learning_rate=rate, clip_norm=1.0)[0]

    return run


def plain_logits(model: Any, ids: Any, bf16: str | None) -> Any:
    """The transformers model's logits for [batch, sequence] ids.

    Args:
        bf16: `autocast`, or `copy`: of all weights, made anew each time; the logits are fp32 then. None: all in
            the dtype of the weights.
    """
    import torch

    copies = {name: p.bfloat16() for name, p in model.named_parameters()} if bf16 == "copy" else {}
    with torch.autocast(ids.device.type, torch.bfloat16, enabled=bf16 == "autocast"):
        logits = torch.func.functional_call(model, copies, (), {"input_ids": ids}).logits
    return logits.float() if bf16 else logits


def plain_step(parts: int, bf16: str, work: Work) -> Any:
    """The step as anyone would write it, its batch in `parts` whose gradients add up; `bf16` as of plain_logits."""
    import torch
    from torch.nn import functional as F

    model, c = plain(work), optimizer_config(work)
    groups = [{"params": [p for p in model.parameters() if p.ndim >= 2], "weight_decay": c.weight_decay},
              {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=c.learning_rate, betas=(c.beta1, c.beta2))

    def run(ids: Any, rate: float) -> Any:
        total = torch.zeros((), device=ids.device)
        for part in ids.chunk(parts):
            logits = plain_logits(model, part[:, :-1], bf16)
            loss = F.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten()) / parts
            del logits
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), c.clip_norm)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad()
        return total

    return run


def gradient_errors(ids: Any, work: Work) -> dict[str, dict[str, float]]:
    """Relative error of one step's gradients against fp64, by recipe: over all weights, and of the worst one."""
    import torch
    from torch.nn import functional as F

    x, y = ids[:, :work.gradient_tokens], ids[:, 1:work.gradient_tokens + 1]

    def of_model(model: Any, bf16: str | None) -> dict[str, Any]:
        F.cross_entropy(plain_logits(model, x, bf16).flatten(0, 1), y.flatten()).backward()
        return {name: p.grad.double().cpu() for name, p in model.named_parameters()}

    def of_ours(precision: str) -> dict[str, Any]:
        trained, _, _ = ours(precision, work)
        assert trained.working
        with trained.working.in_place():
            (trained(x.contiguous(), y.contiguous()) / y.numel()).backward()
        trained.working.keep_gradients()
        return {name: p.grad.double().cpu() for name, p in trained.model.named_parameters()}

    def norm(tensors: Any) -> Any:
        return torch.stack([t.norm() for t in tensors]).norm()

    exact = of_model(plain(work).double(), None)
    whole = norm(exact.values())
    found = {}
    for recipe in (*REFERENCES, *(r for r in OURS if r in work.recipes)):
        torch.cuda.empty_cache()
        grads = of_ours(OURS[recipe]) if recipe in OURS else of_model(plain(work), PLAIN[recipe][1])
        off = {name: (grads[name] - right).norm() for name, right in exact.items()}
        large = [name for name, right in exact.items() if right.norm() > 1e-3 * whole]
        found[recipe] = {
            "all": float(norm(off.values()) / whole),
            "worst": float(max(off[name] / exact[name].norm() for name in large)),
        }
    return found


def run_one(recipe: str, tokens: str, work: Work) -> dict[str, Any]:
    """One recipe, or the gradients, in this process; `tokens`: the file of text_tokens."""
    import torch
    import torch.distributed as dist

    if work.device == "cuda":
        torch.cuda.set_device(0)
    dist.init_process_group("nccl" if work.device == "cuda" else "gloo", rank=0, world_size=1,
                            init_method=f"file://{tokens}.{recipe}")
    ids, started = torch.load(tokens), time.perf_counter()
    if recipe == "gradients":
        return {"recipe": recipe, "errors": gradient_errors(ids[0, :1].to(work.device), work)}
    return {"recipe": recipe, "losses": losses(recipe, ids, work), "seconds": time.perf_counter() - started,
            "device": torch.cuda.get_device_name() if work.device == "cuda" else "cpu", "torch": torch.__version__}


def run_all(recipes: Sequence[str], work: Work, tokens: str) -> dict[str, dict[str, Any]]:
    """The recipes, each in a fresh process, on the same tokens."""
    import torch

    torch.save(text_tokens(work), tokens)
    results = {}
    for recipe in recipes:
        command = [sys.executable, __file__, "--one", recipe, tokens, "--device", work.device,
                   "--seed", str(work.seed)]
        results[recipe] = result_of(command, 400)
        if "error" in results[recipe]:
            sys.exit(f"{recipe}: {results[recipe]['error']}")
        print(recipe, results[recipe].get("seconds"), file=sys.stderr, flush=True)
    return results


def smoothed(values: list[float]) -> list[float]:
    """Means of SMOOTHED steps in a row."""
    return [sum(values[i - SMOOTHED:i]) / SMOOTHED for i in range(SMOOTHED, len(values) + 1)]


def tables(results: dict[str, dict[str, Any]]) -> str:
    """Markdown."""
    references = {name: smoothed(results[name]["losses"]) for name in REFERENCES if name in results}
    lines = ["| recipe | loss at 1 | at 50 | at 100 | at 200 (smoothed) |"
             + "".join(f" largest difference from {name}, smoothed | mean |" for name in references),
             "|---" * (5 + 2 * len(references)) + "|"]
    for recipe in (r for r in (*PLAIN, *OURS) if r in results):
        raw = results[recipe]["losses"]
        curve = smoothed(raw)
        cells = [recipe, f"{raw[0]:.4f}", f"{raw[49]:.4f}", f"{raw[99]:.4f}", f"{curve[-1]:.4f}"]
        for name, reference in references.items():
            off = [a / b - 1 for a, b in zip(curve, reference, strict=True)]
            cells += ["", ""] if name == recipe else [f"{max(map(abs, off)):.3%}", f"{sum(off) / len(off):+.3%}"]
        lines.append(f"| {' | '.join(cells)} |")
    if "gradients" not in results:
        return "\n".join(lines)
    lines += ["", "| gradients of one step against fp64 | error over all weights | worst weight |", "|---|---|---|"]
    for recipe, error in results["gradients"]["errors"].items():
        lines.append(f"| {recipe} | {error['all']:.2%} | {error['worst']:.2%} |")
    return "\n".join(lines)


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", choices=WORKS, default="cuda", help="cpu: a small model, without fp8")
    parser.add_argument("--seed", type=int, default=1, help="of weights and of the order of the text (default: 1)")
    parser.add_argument("--only", default="",
                        help=f"of {', '.join(WORKS['cuda'].recipes)}; {' or '.join(REFERENCES)} among them")
    parser.add_argument("--out", type=Path, help="write all losses to this JSON file")
    parser.add_argument("--one", nargs=2, metavar=("RECIPE", "TOKENS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    work = dataclasses.replace(WORKS[arguments.device], seed=arguments.seed)
    if arguments.one:
        recipe, tokens = arguments.one
        tell(run_one(recipe, tokens, work))
        return
    recipes = [name for name in arguments.only.split(",") if name] or work.recipes
    if not set(recipes) & set(REFERENCES) or not set(recipes) <= set(work.recipes):
        parser.error(f"--only {arguments.only}: on {arguments.device}, any of {', '.join(work.recipes)}, and among "
                     f"them {' or '.join(REFERENCES)}, which the others are compared with")
    with tempfile.TemporaryDirectory() as folder:
        results = run_all(recipes, work, f"{folder}/tokens.pt")
    if arguments.out:
        arguments.out.write_text(json.dumps(results) + "\n")
    print(tables(results))


if __name__ == "__main__":
    main()
