"""fp8 matrix products: what they round, what they leave, and who may not use them. On CPU."""

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from training import fp8, model, place
from training.config import ModelConfig, Placement, TrainConfig, TrainJob
from training.errors import JobError
from training.shape import ModelShape
from training.topology import TopologyError, resolve

SIZES = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
NEOX = {**{k: v for k, v in SIZES.items() if k != "num_key_value_heads"}, "model_type": "gpt_neox"}


def config_of(architecture):
    return model.read_config(ModelConfig(weights="random", architecture=architecture))


def decoder_layer(architecture):
    torch.manual_seed(0)
    causal_lm = AutoModelForCausalLM.from_config(config_of(architecture), dtype=torch.bfloat16)
    return causal_lm, model.decoder_layers(causal_lm)[0]


def relative(found, right):
    return ((found.float() - right.float()).norm() / right.float().norm()).item()


def test_rows_of_any_size_keep_three_bits_each():
    rows = torch.randn(6, 64) * torch.logspace(-10, 10, 6)[:, None]
    for dim in (-1, 0):
        q, scale = fp8.quantise_rows(rows if dim == -1 else rows.t(), dim)
        back = q.float() * scale
        back = back if dim == -1 else back.t()
        for found, right in zip(back, rows, strict=True):
            assert relative(found, right) < 2**-4
        assert torch.equal(torch.log2(scale), torch.log2(scale).round()), "scales are powers of two"
        assert q.float().abs().max() > fp8.LARGEST / 2


def test_zeros_and_the_largest_numbers_stay_numbers():
    rows = torch.zeros(2, 16, dtype=torch.bfloat16)
    rows[1] = torch.finfo(torch.bfloat16).max
    q, scale = fp8.quantise_rows(rows)
    assert torch.equal(q[0].float(), torch.zeros(16))
    assert q.float().isfinite().all()
    assert scale.isfinite().all()


def test_one_scale_for_all_rows_changes_no_value_that_still_fits():
    rows = torch.randn(32, 48) * torch.logspace(-1, 0, 32)[:, None]
    q, scale = fp8.quantise_rows(rows)
    turned = fp8.transpose_rescaled(q, scale, scale.amax())
    before, after = q.float() * scale, turned.float().t() * scale.amax()
    normal = before.abs() >= scale.amax() * 2**-6
    assert torch.equal(before[normal], after[normal])
    assert (before - after).abs().max() <= scale.amax() * 2**-10


@pytest.mark.parametrize("architecture", [
    {**SIZES, "model_type": "qwen2"}, {**SIZES, "model_type": "llama"}, NEOX,
    {**SIZES, "model_type": "gemma2", "head_dim": 16, "hidden_activation": "gelu_pytorch_tanh"},
], ids=lambda a: a["model_type"])
def test_a_layer_in_fp8_is_the_layer_within_the_rounding(architecture):
    causal_lm, layer = decoder_layer(architecture)
    ids = torch.randint(0, 64, (2, 32))
    names = {id(p): n for n, p in causal_lm.named_parameters()}

    def loss_and_gradients():
        causal_lm.zero_grad()
        loss = causal_lm(ids, labels=ids).loss
        loss.backward()
        return loss.item(), {names[id(p)]: p.grad.clone() for p in layer.parameters() if p.grad is not None}

    exact_loss, exact = loss_and_gradients()
    fp8.use_fp8(layer)
    loss, found = loss_and_gradients()
    assert loss != exact_loss
    assert loss == pytest.approx(exact_loss, rel=0.01)
    for name, right in exact.items():
        if right.norm() > 1e-3 * max(g.norm() for g in exact.values()):
            assert relative(found[name], right) < 0.15, name
    assert names == {id(p): n for n, p in causal_lm.named_parameters()}


def test_only_a_gated_silu_takes_the_fused_path():
    _, silu = decoder_layer({**SIZES, "model_type": "llama"})
    _, gelu = decoder_layer({**SIZES, "model_type": "llama", "hidden_act": "gelu"})
    assert fp8._is_gated_silu(silu.get_submodule("mlp"))
    assert not fp8._is_gated_silu(gelu.get_submodule("mlp"))
    assert not fp8._is_gated_silu(silu.get_submodule("self_attn"))


def test_layers_that_fp8_cannot_multiply_are_refused():
    with pytest.raises(JobError, match=r"training\.precision fp8: the decoder layers have no nn\.Linear"):
        fp8.use_fp8(nn.Sequential(nn.Linear(24, 24), nn.LayerNorm(24)))


def job(gpu, memory_mib=22888):
    return TrainJob(
        name="x", training=TrainConfig(precision="fp8", sequence_length=512),
        placement=Placement(nodes=2, workers_per_node=4, storage="s", gpu=gpu, gpu_memory_mib=memory_mib,
                            link_mbps=40000))


def test_gpus_without_fp8_units_are_refused_before_anything_is_held():
    shape = ModelShape.from_config({**SIZES, "model_type": "qwen2", "max_position_embeddings": 512})
    with pytest.raises(TopologyError, match=r"training\.precision fp8 needs GPUs with fp8 units, and a10g has "
                                            r"none; use bf16, or one of l4, l40s, h100"):
        resolve(job("a10g"), shape)
    assert resolve(job("l4"), shape)[0].training.precision == "fp8"


def test_a_rank_without_fp8_units_says_so(monkeypatch):
    where = Placement(nodes=1, workers_per_node=1, device="cuda", storage="s")
    for name, answer in (("is_available", True), ("current_device", 0), ("get_device_capability", (8, 6)),
                         ("get_device_name", "NVIDIA A10G")):
        monkeypatch.setattr(f"torch.cuda.{name}", lambda *_, answer=answer: answer)
    with pytest.raises(JobError, match=r"training\.precision fp8 needs GPUs with fp8 .* NVIDIA A10G; use bf16"):
        place.check_device(where, 1, "fp8")
    assert place.check_device(where, 1) == torch.device("cuda", 0)
    on_cpu = Placement(nodes=1, workers_per_node=1, device="cpu", backend="gloo", storage="s")
    with pytest.raises(JobError, match="this job runs on CPUs; use bf16"):
        place.check_device(on_cpu, 1, "fp8")


def test_mixtures_of_experts_are_refused():
    mixture = config_of({**SIZES, "model_type": "mixtral", "num_local_experts": 2})
    with pytest.raises(JobError, match=r"training\.precision fp8 is for dense models, and mixtral is a mixture"):
        model.check_precision(mixture, "fp8")
    model.check_precision(mixture, "bf16")
