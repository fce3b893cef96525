"""Choices made from predictions, and predictions held against what was measured and published."""

import subprocess
import sys
from dataclasses import replace
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagleray import catalog
from settings import load_settings
from training.config import ModelConfig, ParallelConfig, Placement, TrainConfig, TrainJob
from training.hardware import TCP_EFFICIENCY, UnknownGpuError, gpus, hardware_of
from training.memory import Recipe, predict_memory
from training.plan import predict
from training.shape import ModelShape, UnknownShapeError, known_shape
from training.step_time import predict_step, ring_bytes
from training.topology import TopologyError, choose, largest_micro_batch, resolve


def shape_of(name):
    shape = known_shape(ModelConfig(name=name))
    assert shape is not None
    return shape


QWEN = shape_of("Qwen/Qwen2.5-1.5B")


def place(instance="g6.12xlarge", nodes=2, **fields):
    found = catalog.instance_type(instance)
    return Placement(
        nodes=nodes, workers_per_node=found.gpus, storage="runs", gpu=found.gpu,
        gpu_memory_mib=found.gpu_mem_mib, link_mbps=found.net_mbps, **fields,
    )


def machines(*arguments, **fields):
    hardware = hardware_of(place(*arguments, **fields))
    assert hardware is not None
    return hardware


def automatic(**fields: Any):
    return TrainConfig(**fields)


def by_hand(micro_batch=2, **parallel: Any):
    """Nothing automatic; `parallel` replaces parts of hybrid, freed, exact and recomputed."""
    chosen = {"sharding": "hybrid", "reshard_after_forward": True, "reduce_dtype": "fp32", "recompute": "layers"}
    return TrainConfig(micro_batch=micro_batch, accumulation=1, parallel=ParallelConfig(**{**chosen, **parallel}))


def resolved(training, placement=None, shape: ModelShape | None = QWEN):
    return resolve(TrainJob(name="t", training=training, placement=placement or place()), shape)


def refusal(training, placement=None):
    with pytest.raises(TopologyError) as error:
        resolved(training, placement)
    assert "\n" not in str(error.value)
    return str(error.value)


# --- against measurement -----------------------------------------------------------------------------

# This trainer on one H200, torch 2.11, Qwen2.5-1.5B, seq 2048, layers compiled: batch, recompute, precision,
# milliseconds a step, peak GiB (benchmarks/RESULTS.md; fp8 before its kernels were last changed).
H200 = [
    (8, "none", "bf16", 312.5, 44.6), (24, "none", "bf16", 896.4, 89.5), (32, "none", "bf16", 1184.3, 110.7),
    (16, "layers", "bf16", 740.9, 28.8),
    (16, "none", "fp8", 468.2, 79.8), (24, "none", "fp8", 687.2, 106.9), (32, "none", "fp8", 905.7, 133.9),
]


def h200(batch, recompute: Literal["none", "layers"] = "none", precision="bf16", compiled=True):
    parallel = {"sharding": "full", "recompute": recompute, "reshard_after_forward": False, "compile": compiled}
    training = by_hand(micro_batch=batch, **parallel).model_copy(update={"precision": precision})
    hardware = hardware_of(Placement(nodes=1, workers_per_node=1, storage="runs", gpu="h200",
                                     gpu_memory_mib=144384, link_mbps=3_200_000))
    assert hardware is not None
    return predict(training, QWEN, hardware)


@pytest.mark.parametrize(("batch", "recompute", "precision", "milliseconds", "peak_gib"), H200)
def test_memory_and_time_of_one_h200_are_predicted_within_six_percent(
    batch, recompute, precision, milliseconds, peak_gib
):
    plan = h200(batch, recompute, precision)
    assert plan.memory.gib == pytest.approx(peak_gib, rel=0.06)
    assert 1000 * plan.time.seconds == pytest.approx(milliseconds, rel=0.06)
    assert plan.time.mfu == pytest.approx(batch * 2048 * 9.79e9 / 989e12 / (milliseconds / 1000), rel=0.06)


def test_uncompiled_layers_keep_what_was_measured_more():
    # 90.0 against 77.1 GiB, and 436.5 against 346.5 ms, at batch 8, both with the whole logits; and 10.3 GiB that
    # compiled layers have recomputed since
    eager, compiled = h200(8, compiled=False), h200(8)
    assert eager.memory.gib - compiled.memory.gib == pytest.approx(90.0 - 77.1 + 10.3, rel=0.1)
    assert 1000 * (eager.time.seconds - compiled.time.seconds) == pytest.approx(436.5 - 346.5, rel=0.15)


# AWS's sample on two g6.12xlarge (published 2026-10-28): FSDP1 wrapped by size, so that embedding and head are
# gathered twice as the layers are; bf16 throughout; 128 tokens a GPU. Steps a second over EFA and over TCP.
# Two constants of training/hardware.py (shares of the line rate) are calibrated on these figures, so this holds
# the rest of the model (bytes, compute, memory traffic) to them; below 1, they say that the wire could do it.
@pytest.mark.parametrize(("efficiency", "published"), [([], 0.5173), ([TCP_EFFICIENCY], 0.2513)])
def test_the_published_figures_of_the_aws_sample_follow_from_its_recipe(efficiency, published):
    hardware = hardware_of(place(), *efficiency)
    assert hardware is not None
    everything_in_layers = ModelShape(layers=28, hidden=1536, intermediate=8960 + 233_374_720 // (3 * 1536 * 28),
                                      heads=12, kv_heads=2, head_dim=128, vocab=1, tied=True)
    assert everything_in_layers.parameters == pytest.approx(1.54e9, rel=0.01)
    recipe = Recipe("full", 8, True, "bf16", "none", False, 128, 1, 1)
    step = predict_step(everything_in_layers, recipe, hardware)
    assert step.link_bytes == pytest.approx(8.1e9, rel=0.01)
    assert 1 / step.seconds == pytest.approx(published, rel=0.02)


@pytest.mark.parametrize(
    ("sharding", "reshard", "reduce", "gigabytes"),
    [("full", True, "bf16", 8.1), ("full", False, "bf16", 5.4), ("hybrid", True, "bf16", 3.09),
     ("hybrid", True, "fp32", 6.2), ("hybrid", False, "bf16", 3.09)],
)
def test_bytes_between_two_nodes_are_those_of_the_arithmetic(sharding, reshard, reduce, gigabytes):
    training = by_hand(sharding=sharding, reshard_after_forward=reshard, reduce_dtype=reduce)
    plan = predict(training, QWEN, machines())
    # our trainer leaves embedding and head gathered, which the sample gathers again
    saved = ring_bytes(2 * QWEN.root_parameters, 8) / 1e9 if sharding == "full" and reshard else 0
    assert plan.time.link_bytes / 1e9 == pytest.approx(gigabytes - saved, rel=0.01)


# --- the shape ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "billions"),  # of the model cards
    [("Qwen/Qwen2.5-0.5B", 0.49), ("Qwen/Qwen2.5-1.5B", 1.54), ("Qwen/Qwen2.5-7B", 7.61),
     ("meta-llama/Llama-3.1-8B", 8.03)],
)
def test_known_models_have_the_parameters_of_their_cards(name, billions):
    assert shape_of(name).parameters / 1e9 == pytest.approx(billions, abs=0.01)


@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama", "mistral", "gemma2", "gpt_neox", "gpt2", "phi"])
def test_the_shape_counts_what_transformers_builds(kind):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {"vocab_size": 1000, "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4}
    config = AutoConfig.for_model(kind, **sizes, **({} if kind == "gpt2" else {"intermediate_size": 700}))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    shape = ModelShape.from_config(config.to_dict())
    built = sum(p.numel() for p in model.parameters())
    positions = sum(m.num_embeddings * m.embedding_dim for n, m in model.named_modules() if n.endswith("wpe"))
    assert shape.parameters == pytest.approx(built - positions, rel=0.01)


def test_a_mixture_of_experts_has_no_shape_and_gets_the_cautious_choices():
    with pytest.raises(UnknownShapeError, match="mixture of experts"):
        ModelShape.from_config({"model_type": "mixtral", "num_local_experts": 8})
    job, reasons = resolved(automatic(), shape=None)
    assert (job.training.micro_batch, job.training.parallel.recompute) == (1, "layers")
    assert all("shape is not known" in line for line in reasons)


def test_a_model_that_we_do_not_know_is_not_guessed():
    assert known_shape(ModelConfig(name="someone/else")) is None


# --- the choices -------------------------------------------------------------------------------------


@pytest.mark.parametrize("instance", [t for t in catalog.efa_gpu_types() if t != "p5.4xlarge"])
def test_every_instance_type_of_the_catalog_is_resolved_without_auto(instance):
    job, reasons = resolved(automatic(), place(instance))
    assert "auto" not in job.model_dump_json(exclude={"training": {"transport"}})
    assert [line.split(" ")[0] for line in reasons[:6]] == [
        "sharding", "reshard_after_forward", "reduce_dtype", "recompute", "micro_batch", "accumulation"]
    hardware = machines(instance)
    assert predict(job.training, QWEN, hardware).memory.total <= hardware.comfortable_room


def test_what_the_user_set_is_kept_and_said():
    mine = {"sharding": "full", "reshard_after_forward": True, "reduce_dtype": "bf16", "recompute": "layers"}
    job, reasons = resolved(automatic(parallel=mine, micro_batch=3, accumulation=2))
    chosen = job.training.parallel.model_dump()
    assert {key: chosen[key] for key in mine} == mine
    assert (job.training.micro_batch, job.training.accumulation) == (3, 2)
    assert sum("set by you" in line for line in reasons) == 6


def test_tokens_become_whole_steps_and_say_so():
    job, reasons = resolved(automatic(tokens=1_000_000))
    assert (job.training.steps, job.training.tokens) == (8, None)
    assert reasons[-1] == "steps 8: 1,000,000 tokens at 131,072 a step"
    assert TrainJob.model_validate_json(job.model_dump_json()) == job


def test_tokens_become_steps_also_where_nothing_is_predicted():
    job, _ = resolved(automatic(tokens=1_000_000), place(device="cpu", backend="gloo"))
    assert job.training.steps == 62  # of 8 x 2048 tokens


def test_a_slow_link_makes_hybrid_and_the_reason_has_both_amounts():
    job, reasons = resolved(automatic(parallel={"reduce_dtype": "bf16"}, micro_batch=2))
    assert job.training.parallel.sharding == "hybrid"
    assert "4.5 GB/s" in reasons[0]
    assert "3.1 GB a step with hybrid" in reasons[0]


def test_a_faster_link_never_gives_a_slower_plan():
    four = machines(nodes=4)
    slow, fast = (choose(automatic(), QWEN, replace(four, link=link)) for link in (1e9, 10e9))
    assert fast.time.tokens_per_second > slow.time.tokens_per_second


def test_the_gradients_cross_the_link_once_however_many_micro_batches():
    parallel = {"sharding": "hybrid", "reshard_after_forward": True, "recompute": "none", "reduce_dtype": "bf16"}
    one, four = (predict(automatic(parallel=parallel, micro_batch=2, accumulation=k), QWEN, machines())
                 for k in (1, 4))
    assert one.time.link_bytes == four.time.link_bytes
    assert four.time.tokens_per_second > one.time.tokens_per_second


def test_whole_gradients_are_counted_where_full_sharding_accumulates():
    twice = Recipe("full", 8, True, "fp32", "layers", True, 2048, 4, 2)
    once = replace(twice, accumulation=1)
    more = predict_memory(QWEN, twice).total - predict_memory(QWEN, once).total
    assert more == pytest.approx(4 * QWEN.parameters, rel=0.01)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["full", "hybrid"]), st.booleans(), st.sampled_from(["none", "layers"]),
       st.integers(1, 16), st.integers(1, 4), st.sampled_from([128, 2048, 8192]))
def test_memory_grows_with_the_micro_batch_and_recomputation_never_costs_memory(
    sharding, reshard, recompute, batch, accumulation, sequence
):
    def gib(recompute, batch):
        shards = 4 if sharding == "hybrid" else 8
        return predict_memory(QWEN, Recipe(sharding, shards, reshard, "fp32", recompute, True, sequence, batch,
                                           accumulation)).gib

    assert gib(recompute, batch + 1) >= gib(recompute, batch)
    assert gib("layers", batch) <= gib("none", batch) + 0.5


def test_on_one_node_hybrid_is_full():
    hardware = machines(nodes=1)
    full, hybrid = (predict(by_hand(sharding=s), QWEN, hardware)
                    for s in ("full", "hybrid"))
    assert (full.recipe, full.time.link_bytes) == (hybrid.recipe, 0)


def test_a_cpu_gets_plain_choices_and_no_prediction():
    job, reasons = resolved(automatic(), place(device="cpu", backend="gloo"))
    assert (job.training.micro_batch, job.training.accumulation, job.training.parallel.recompute) == (1, 1, "none")
    assert all("nothing is predicted for CPUs" in line for line in reasons)


# --- refusals ----------------------------------------------------------------------------------------


def test_a_micro_batch_that_cannot_fit_is_refused_with_the_largest_that_does():
    line = refusal(automatic(micro_batch=500))
    assert line.startswith("training.micro_batch 500 does not fit: about ")
    assert "an l4 has 21.1 to give" in line
    largest = int(line.rsplit(" ", 1)[1])
    resolved(automatic(micro_batch=largest))
    refusal(automatic(micro_batch=largest + 1))


@pytest.mark.parametrize("parallel", [{"recompute": "none", "sharding": "hybrid"}, {}])
def test_the_largest_micro_batch_is_where_refusal_begins(parallel):
    training = automatic(parallel=parallel)
    largest = largest_micro_batch(training, QWEN, machines())
    assert largest >= 1
    resolved(automatic(parallel=parallel, micro_batch=largest))
    assert f"the largest that fits is {largest}" in refusal(automatic(parallel=parallel, micro_batch=largest + 1))


def test_a_model_of_which_not_one_sequence_fits_says_what_would_help():
    parallel = {"sharding": "hybrid", "recompute": "none"}
    line = refusal(automatic(sequence_length=32768, parallel=parallel))
    for part in ("not even 1 fits", "training.parallel.recompute: layers", "training.parallel.sharding: full",
                 "more nodes"):
        assert part in line


def test_sequences_beyond_the_models_positions_are_refused():
    assert refusal(automatic(sequence_length=131_073)) == (
        "training.sequence_length 131073 is beyond the model's 131072 positions; use 131072 or less")


def test_a_gpu_that_the_table_lacks_is_named():
    with pytest.raises(UnknownGpuError, match=r"placement\.gpu mi300 .*l4"):
        resolved(automatic(), place().model_copy(update={"gpu": "mi300"}))


# --- data and doors ----------------------------------------------------------------------------------


def test_every_gpu_of_the_catalog_is_in_the_table():
    in_catalog = {catalog.instance_type(name).gpu for name in catalog.efa_gpu_types()}
    assert in_catalog <= set(gpus())


@pytest.mark.parametrize(("config", "reduction", "micro_batch", "tokens", "step_seconds"), [
    ("l4", "bf16", 4, 131_072, 3.53), ("h100", "fp32", 6, 196_608, 0.26)])
def test_the_presets_are_resolved_to_what_their_comments_say(config, reduction, micro_batch, tokens, step_seconds):
    job, _ = resolve(load_settings(config).train_job("s3://b/runs"), QWEN)
    parallel = job.training.parallel
    assert (parallel.sharding, parallel.reduce_dtype, parallel.recompute) == ("hybrid", reduction, "none")
    assert job.training.micro_batch == micro_batch
    assert job.tokens_per_step == tokens
    seconds = predict(job.training, QWEN, machines(load_settings(config).gpu.instance_type)).time.seconds
    assert round(seconds, 2) == step_seconds


def test_tokens_a_step_are_not_counted_before_auto_has_a_value():
    with pytest.raises(ValueError, match=r"training\.micro_batch or training\.accumulation is still auto"):
        _ = load_settings("l4").train_job("s3://b/runs").tokens_per_step


def test_a_plan_needs_no_torch():
    code = "import sys, training.topology; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
