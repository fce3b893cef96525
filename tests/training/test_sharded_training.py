"""Sharded over processes, the mathematics is that of plain PyTorch in one process."""

import math

import pytest
import ranks
import sharded_cases as cases
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM

from training import step
from training.config import ModelConfig, ParallelConfig
from training.errors import JobError
from training.model import read_config
from training.parallel import make_mesh

pytestmark = pytest.mark.slow

SIZES = {key: value for key, value in ranks.QWEN2.items() if key not in ("model_type", "tie_word_embeddings")}
LLAMA = {"model_type": "llama", **SIZES, "tie_word_embeddings": False}
QWEN3 = {"model_type": "qwen3", **SIZES, "head_dim": 8, "tie_word_embeddings": True}
MISTRAL = {"model_type": "mistral", **SIZES, "sliding_window": 4}
NEOX = {"model_type": "gpt_neox", **SIZES, "hidden_dropout": 0.0, "attention_dropout": 0.0}
GEMMA2 = {"model_type": "gemma2", **SIZES, "head_dim": 8, "final_logit_softcapping": 3.0,
          "attn_logit_softcapping": 0.1}
GEMMA3 = {"model_type": "gemma3_text", **SIZES, "head_dim": 8, "sliding_window": 4,
          "layer_types": ["sliding_attention", "full_attention"]}
# Softmax ignores a shift of all keys: the true gradient of a key's bias is 0, and Adam makes steps of its noise.
NOISE = ("k_proj.bias", "query_key_value.bias")

FP32, BF16 = torch.float32, torch.bfloat16
FULL = {"sharding": "full", "recompute": "none"}
HYBRID = {"sharding": "hybrid", "recompute": "layers"}

CASES = {
    "full, tied embeddings": (ranks.QWEN2, FULL, 1, FP32, 1),
    "hybrid 2x2, tied embeddings, recompute": (ranks.QWEN2, HYBRID, 2, FP32, 1),
    "full, untied embeddings": (LLAMA, FULL, 1, FP32, 1),
    "full, parameters kept after forward": (LLAMA, {**FULL, "reshard_after_forward": False}, 1, FP32, 1),
    "full, GPT-NeoX": (NEOX, FULL, 1, FP32, 1),
    "hybrid 2x2, Qwen3": (QWEN3, HYBRID, 2, FP32, 1),
    "full, Mistral with a sliding window": (MISTRAL, FULL, 1, FP32, 2),
    "full, Gemma 2 with its soft caps": (GEMMA2, FULL, 1, FP32, 1),
    "hybrid 2x2, Gemma 3 with both kinds of attention": (GEMMA3, HYBRID, 2, FP32, 2),
    "full, accumulated": (ranks.QWEN2, FULL, 1, FP32, 2),
    "hybrid 2x2, accumulated": (ranks.QWEN2, HYBRID, 2, FP32, 2),
    "full, bf16": (ranks.QWEN2, FULL, 1, BF16, 1),
    "hybrid 2x2, bf16, bf16 reduction": (ranks.QWEN2, {**HYBRID, "reduce_dtype": "bf16"}, 2, BF16, 1),
}
ONE_RANK = {
    "one rank": (ranks.QWEN2, {**FULL, "recompute": "layers"}, 1, FP32, 1),
    "one rank, accumulated": (LLAMA, FULL, 1, FP32, 2),
    "one rank, bf16": (ranks.QWEN2, FULL, 1, BF16, 2),
}
TWO_RANKS = {"full on 2": (ranks.QWEN2, FULL, 1, FP32, 1), "one rank a node": (LLAMA, HYBRID, 2, FP32, 2)}


@pytest.fixture(scope="module")
def on_four():
    return dict(zip(CASES, ranks.run(4, cases.train_and_gather, list(CASES.values()))[0], strict=True))


@pytest.fixture(scope="module")
def on_two():
    return dict(zip(TWO_RANKS, ranks.run(2, cases.train_and_gather, list(TWO_RANKS.values()))[0], strict=True))


@pytest.fixture(scope="module")
def on_one():
    return dict(zip(ONE_RANK, ranks.run(1, cases.train_and_gather, list(ONE_RANK.values()))[0], strict=True))


def plain_training(architecture, state):
    """The same four steps with transformers and torch alone: fp32, one process, whole batch, full logits."""
    config = cases.training(architecture, 1)
    causal_lm = AutoModelForCausalLM.from_config(read_config(config.model), attn_implementation="eager").train()
    causal_lm.load_state_dict(state)
    decayed = [p for p in causal_lm.parameters() if p.ndim >= 2]
    others = [p for p in causal_lm.parameters() if p.ndim < 2]
    o = config.optimizer
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": o.weight_decay}, {"params": others, "weight_decay": 0.0}],
        lr=o.learning_rate, betas=(o.beta1, o.beta2), fused=False,
    )
    numbers = []
    for number in range(1, 5):
        (ids, labels), = cases.batches(config, number, 0, 1)
        loss = F.cross_entropy(causal_lm(ids).logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(causal_lm.parameters(), o.clip_norm)
        for group in optimizer.param_groups:
            group["lr"] = step.learning_rate(o, number, config.steps)
        optimizer.step()
        optimizer.zero_grad()
        numbers.append((loss.item(), norm.item()))
    return numbers, causal_lm.state_dict()


def assert_same_training(found, architecture, kinds):
    before, numbers, after, parameters = found
    expected_numbers, expected = plain_training(architecture, before)
    assert parameters == kinds
    assert numbers == [pytest.approx(pair, rel=1e-4) for pair in expected_numbers]
    for name, value in expected.items():  # within half a percent of what one AdamW step moves a weight
        if not name.endswith(NOISE):
            torch.testing.assert_close(after[name], value, rtol=1e-4, atol=5e-5, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("case", [name for name, case in CASES.items() if case[3] is FP32])
def test_four_ranks_train_like_plain_pytorch(on_four, case):
    assert_same_training(on_four[case], CASES[case][0], {"DTensor"})


@pytest.mark.parametrize("case", TWO_RANKS)
def test_two_ranks_train_like_plain_pytorch(on_two, case):
    assert_same_training(on_two[case], TWO_RANKS[case][0], {"DTensor"})


@pytest.mark.parametrize("case", [name for name, case in ONE_RANK.items() if case[3] is FP32])
def test_one_rank_trains_like_plain_pytorch(on_one, case):
    assert_same_training(on_one[case], ONE_RANK[case][0], {"Parameter"})


@pytest.mark.parametrize("case", [n for n, case in (CASES | ONE_RANK).items() if case[3] is BF16])
def test_bf16_compute_stays_within_its_rounding(on_four, on_one, case):
    before, numbers, after, _ = (on_one | on_four)[case]
    expected_numbers, expected = plain_training((CASES | ONE_RANK)[case][0], before)
    assert [loss for loss, _ in numbers] == pytest.approx([loss for loss, _ in expected_numbers], rel=5e-3)
    assert all(value.dtype == torch.float32 for value in after.values())
    moved = torch.cat([(after[n] - before[n]).flatten() for n in expected if not n.endswith(NOISE)])
    should = torch.cat([(expected[n] - before[n]).flatten() for n in expected if not n.endswith(NOISE)])
    assert F.cosine_similarity(moved, should, dim=0) > 0.97


def test_accumulated_micro_batches_are_one_bigger_batch(on_four):
    once, twice = on_four["full, tied embeddings"], on_four["full, accumulated"]
    assert twice[1] == [pytest.approx(pair, rel=1e-4) for pair in once[1]]


@pytest.mark.parametrize("broken", ["loss", "gradient"])
def test_a_step_that_is_not_finite_on_one_rank_changes_nothing_on_any(broken):
    for numbers, moved in ranks.run(2, cases.steps_around_a_broken_one, ranks.QWEN2, broken):
        assert moved == [True, False, True]
        assert [all(map(math.isfinite, pair)) for pair in numbers] == [True, False, True]
        assert math.isfinite(numbers[1][0]) == (broken == "gradient")


def test_random_weights_do_not_depend_on_the_ranks(on_four, on_two):
    four, two = on_four["full, tied embeddings"][0], on_two["full on 2"][0]
    assert four.keys() == two.keys()
    assert all(torch.equal(four[name], two[name]) for name in four)


def test_training_resumes_exactly_and_on_another_mesh_and_world(tmp_path):
    unbroken = ranks.run(4, cases.save_then_train_on, ranks.QWEN2, FULL, 1, str(tmp_path))[0]
    same = ranks.run(4, cases.resume_then_train_on, ranks.QWEN2, FULL, 1, str(tmp_path))[0]
    hybrid = ranks.run(4, cases.resume_then_train_on, ranks.QWEN2, HYBRID, 2, str(tmp_path))[0]
    two = ranks.run(2, cases.resume_then_train_on, ranks.QWEN2, FULL, 1, str(tmp_path))[0]
    one = ranks.run(1, cases.resume_then_train_on, ranks.QWEN2, FULL, 1, str(tmp_path))[0]
    assert same == (3, unbroken)
    assert hybrid == (3, [pytest.approx(pair, rel=1e-4) for pair in unbroken])
    assert two == (3, [pytest.approx(pair, rel=1e-4) for pair in unbroken])
    assert one == (3, [pytest.approx(pair, rel=1e-4) for pair in unbroken])


@pytest.mark.long
def test_a_hybrid_checkpoint_resumes_as_one_shard_group_and_on_another_world(tmp_path):
    unbroken = ranks.run(4, cases.save_then_train_on, ranks.QWEN2, HYBRID, 2, str(tmp_path))[0]
    for world in (4, 2):
        found = ranks.run(world, cases.resume_then_train_on, ranks.QWEN2, FULL, 1, str(tmp_path))[0]
        assert found == (3, [pytest.approx(pair, rel=1e-4) for pair in unbroken])


def test_only_whole_checkpoints_count_and_old_ones_go(tmp_path):
    from training import checkpoint
    from training.storage import RunFolder

    ranks.run(2, cases.save_many, ranks.QWEN2, str(tmp_path), [2, 4, 6], 2)
    folder, steps = RunFolder(str(tmp_path), "run"), tmp_path / "run" / "checkpoints"
    assert sorted(p.name for p in steps.iterdir()) == ["step-00000004", "step-00000006"]
    assert checkpoint.newest(folder) == 6
    shard = next((steps / "step-00000006").glob("*.distcp"))
    shard.write_bytes(shard.read_bytes()[:-1])
    assert checkpoint.newest(folder) == 4
    (steps / "step-00000004" / "complete.json").unlink()
    assert checkpoint.newest(folder) is None


def test_pretrained_weights_reach_all_shards(tmp_path):
    causal_lm = AutoModelForCausalLM.from_config(read_config(ModelConfig(weights="random", architecture=LLAMA)))
    causal_lm.to(torch.bfloat16).save_pretrained(tmp_path)
    for state in ranks.run(2, cases.load_pretrained, tmp_path, LLAMA):
        for name, value in causal_lm.state_dict().items():
            assert state[name].dtype == torch.float32
            assert torch.equal(state[name], value.float()), name


def test_a_checkpoint_without_some_weights_is_refused_on_all_ranks(tmp_path):
    from safetensors.torch import load_file, save_file

    causal_lm = AutoModelForCausalLM.from_config(read_config(ModelConfig(weights="random", architecture=LLAMA)))
    causal_lm.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    state = load_file(file)
    del state["model.layers.1.mlp.up_proj.weight"]
    save_file(state, file, metadata={"format": "pt"})
    reasons = ranks.run(2, cases.load_pretrained, tmp_path, LLAMA)
    assert reasons[0] == reasons[1]
    assert "lacks 1 of the model's weights, first model.layers.1.mlp.up_proj.weight" in reasons[0]


def test_what_fails_on_one_rank_fails_on_all_with_its_reason():
    assert ranks.run(3, cases.fail_on_one_rank) == ["agreed: the file is not on this node"] * 3


def test_a_world_that_does_not_fill_the_mesh_is_refused(monkeypatch):
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 6)
    expected = r"^training\.parallel\.sharding hybrid: 6 ranks do not fill .* it needs 8 \(gpu\.nodes"
    with pytest.raises(JobError, match=expected):
        make_mesh(ParallelConfig(sharding="hybrid"), 2, 4, "cpu")


def test_exported_names_are_those_of_transformers(on_four):
    causal_lm = AutoModelForCausalLM.from_config(read_config(ModelConfig(weights="random", architecture=LLAMA)))
    assert on_four["full, untied embeddings"][0].keys() == causal_lm.state_dict().keys()
