"""Any causal LM of transformers ends in its own loss; what would be trained wrongly is refused."""

import copy

import pytest
import torch
import torch.nn.functional as F
from ranks import QWEN2
from transformers import AutoModelForCausalLM

from training import metrics
from training.config import ModelConfig
from training.errors import JobError
from training.model import (
    CausalLMWithLoss,
    check_fits,
    decoder_layers,
    empty_model,
    outer_norms,
    read_config,
    uses_dropout,
)
from training.weights import Weights

SIZES = {key: value for key, value in QWEN2.items() if key not in ("model_type", "tie_word_embeddings")}
GPT2 = {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
SLIDING_AND_FULL = ["sliding_attention", "full_attention"]
ARCHITECTURES = {
    "qwen2": SIZES, "qwen3": {**SIZES, "head_dim": 8}, "llama": SIZES, "mistral": {**SIZES, "sliding_window": 4},
    "gemma": {**SIZES, "head_dim": 8}, "gemma2": {**SIZES, "head_dim": 8, "final_logit_softcapping": 3.0},
    "gemma3_text": {**SIZES, "head_dim": 8, "sliding_window": 4, "layer_types": SLIDING_AND_FULL},
    "gpt_neox": SIZES, "gpt2": GPT2, "phi": SIZES, "cohere": {**SIZES, "logit_scale": 0.3},
    "granite": {**SIZES, "logits_scaling": 4.0}, "mixtral": {**SIZES, "num_local_experts": 4},
    "opt": {**SIZES, "ffn_dim": 64, "word_embed_proj_dim": 32},
}


def config_of(kind, **fields):
    return read_config(ModelConfig(weights="random", architecture={"model_type": kind, **fields}))


def materialised(config, seed=1):
    trained = empty_model(config)
    Weights(trained, torch.device("cpu"), seed).fill(trained)
    return trained


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_loss_and_gradients_are_the_models_own(kind, tied):
    trained = materialised(config_of(kind, **ARCHITECTURES[kind], tie_word_embeddings=tied)).eval()
    with torch.no_grad():  # weights large enough for the soft cap and the factors to show
        trained.head.weight.mul_(20)
    ids, labels = torch.randint(0, 64, (2, 2, 16), generator=torch.Generator().manual_seed(0))
    labels[0, :5] = -100
    logits = trained.model(input_ids=ids).logits.flatten(0, 1)
    expected = F.cross_entropy(logits.float(), labels.flatten(), reduction="sum")
    ours = trained(ids, labels)
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-4)
    names, parameters = zip(*trained.named_parameters(), strict=True)
    for name, a, b in zip(names, torch.autograd.grad(ours, parameters), torch.autograd.grad(expected, parameters),
                          strict=True):
        assert (a - b).norm() <= 1e-4 * b.norm() + 1e-5, name


@pytest.mark.parametrize("kind", sorted(set(ARCHITECTURES) - {"opt"}))  # opt keeps its norm a module deeper
def test_the_norm_before_the_head_is_found(kind):
    trained = empty_model(config_of(kind, **ARCHITECTURES[kind]))
    assert ["Norm" in type(norm).__name__ for norm in outer_norms(trained.model)] == [True]


def test_padding_that_does_not_count_changes_neither_loss_nor_gradients():
    trained = materialised(config_of("qwen2", **SIZES)).eval()
    ids = torch.randint(0, 64, (2, 17), generator=torch.Generator().manual_seed(0))
    lengths = (16, 9)
    alone = sum((trained(row[None, :n], row[None, 1 : n + 1]) for row, n in zip(ids, lengths, strict=True)),
                torch.zeros(()))
    labels = ids[:, 1:].clone()
    labels[1, 9:] = -100
    padded = trained(ids[:, :-1], labels)
    torch.testing.assert_close(padded, alone)
    weight = trained.head.weight
    torch.testing.assert_close(torch.autograd.grad(padded, weight), torch.autograd.grad(alone, weight),
                               rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("cap", "same"), [(0.05, False), (None, True)])
def test_attention_is_soft_capped_where_the_config_says_so(cap, same):
    config = config_of("gemma2", **ARCHITECTURES["gemma2"], attn_logit_softcapping=cap)
    ours = materialised(config).model
    # PyTorch's fused attention knows no cap
    fused = AutoModelForCausalLM.from_config(copy.deepcopy(config), attn_implementation="sdpa")
    weights = {name: value * 10 for name, value in ours.state_dict().items()}
    for model in (ours, fused):
        model.load_state_dict(weights)
    found, uncapped = (model.eval()(torch.arange(16)[None]).logits for model in (ours, fused))
    assert torch.allclose(found, uncapped, atol=1e-4) is same


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_built_without_memory_it_ends_up_as_transformers_builds_it(kind):
    config = config_of(kind, **ARCHITECTURES[kind])
    ours, theirs = materialised(config).model, AutoModelForCausalLM.from_config(config)
    for (name, buffer), (_, expected) in zip(ours.named_buffers(), theirs.named_buffers(), strict=True):
        assert torch.equal(buffer, expected), name
    for (name, made), (_, expected) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        assert made.std().item() == pytest.approx(expected.std().item(), rel=0.5, abs=1e-6), name
        assert made.mean().item() == pytest.approx(expected.mean().item(), abs=0.02), name
    assert len(decoder_layers(ours)) == 2


def test_random_weights_follow_the_seed():
    first, again, other = (materialised(config_of("qwen2", **SIZES), seed).head.weight for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_head_that_does_something_else_is_refused():
    causal_lm = AutoModelForCausalLM.from_config(config_of("llama", **SIZES))
    forward = causal_lm.forward

    def squared(**inputs):
        output = forward(**inputs)
        output.logits = output.logits**2
        return output

    causal_lm.forward = squared
    with pytest.raises(JobError, match="LlamaForCausalLM computes its logits in a way this trainer does not know"):
        CausalLMWithLoss(causal_lm)


def test_asking_the_head_leaves_the_model_as_it_was():
    causal_lm = AutoModelForCausalLM.from_config(config_of("qwen2", **SIZES, tie_word_embeddings=True))
    before = {name: id(tensor) for name, tensor in causal_lm.named_parameters(remove_duplicate=False)}
    CausalLMWithLoss(causal_lm)
    assert before == {name: id(tensor) for name, tensor in causal_lm.named_parameters(remove_duplicate=False)}


@pytest.mark.parametrize(("architecture", "message"), [
    ({"model_type": "qwen22"},
     "training.model.architecture.model_type qwen22 is unknown to transformers; did you mean qwen2?"),
    ({**QWEN2, "num_hidden_layer": 2}, "training.model.architecture.num_hidden_layer is unknown to qwen2; "
                                       "did you mean num_hidden_layers?"),
])
def test_a_slip_in_the_architecture_is_named(architecture, message):
    with pytest.raises(JobError) as error:
        read_config(ModelConfig(weights="random", architecture=architecture))
    assert str(error.value) == message


def test_a_model_that_is_nowhere_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(JobError, match=r"^training.model.name no-such/model at abc "):
        read_config(ModelConfig(name="no-such/model", revision="abc"))
    with pytest.raises(JobError, match=f"^training.model.name {tmp_path} "):
        read_config(ModelConfig(name=str(tmp_path)))


def test_a_model_that_is_no_causal_lm_is_refused():
    with pytest.raises(JobError, match="model type t5 cannot be built as a causal LM"):
        empty_model(config_of("t5", vocab_size=64))


def test_sequences_beyond_the_positions_are_refused():
    with pytest.raises(JobError, match="65 is beyond the model's 64 positions; use 64 or less"):
        check_fits(config_of("qwen2", **SIZES), 65)
    check_fits(config_of("qwen2", **SIZES), 64)


def test_dropout_is_seen_where_it_is():
    assert uses_dropout(config_of("gpt2", **GPT2))
    assert not uses_dropout(config_of("qwen2", **SIZES))
    assert uses_dropout(config_of("qwen2", **SIZES, attention_dropout=0.1))


def test_flops_of_qwen2_5_1_5b_as_published_for_the_baselines():
    config = config_of(
        "qwen2", vocab_size=151936, hidden_size=1536, intermediate_size=8960, num_hidden_layers=28,
        num_attention_heads=12, num_key_value_heads=2, max_position_embeddings=32768, tie_word_embeddings=True,
    )
    assert metrics.flops_per_token(empty_model(config), config, 2048) == pytest.approx(9.79e9, rel=2e-3)


def test_no_flops_are_claimed_for_a_mixture_of_experts():
    config = config_of("mixtral", **ARCHITECTURES["mixtral"])
    assert metrics.flops_per_token(empty_model(config), config, 16) is None


@pytest.mark.parametrize(("name", "tflops"), [
    ("NVIDIA L4", 121), ("NVIDIA L40S", 362), ("NVIDIA H100 80GB HBM3", 989), ("NVIDIA GeForce RTX 3090", None),
])
def test_peak_by_device_name(name, tflops):
    assert metrics.named_peak_flops(name) == (tflops and pytest.approx(tflops * 1e12, rel=1e-3))
