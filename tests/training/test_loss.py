"""The chunked loss is the plain loss: same values, same gradients, whatever the labels and the chunking."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from training.loss import linear_cross_entropy


def plain(hidden, weight, labels, bias=None, softcap=None):
    logits = F.linear(hidden, weight, bias)
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    return F.cross_entropy(logits, labels, ignore_index=-100, reduction="sum")


def make(n=37, h=16, v=53, dtype=torch.float64, seed=0, with_bias=False):
    g = torch.Generator().manual_seed(seed)
    hidden = torch.randn(n, h, generator=g, dtype=dtype).requires_grad_()
    weight = torch.randn(v, h, generator=g, dtype=dtype).requires_grad_()
    bias = torch.randn(v, generator=g, dtype=dtype).requires_grad_() if with_bias else None
    labels = torch.randint(0, v, (n,), generator=g)
    return hidden, weight, labels, bias


def gradients(loss, *leaves):
    return torch.autograd.grad(loss, [leaf for leaf in leaves if leaf is not None])


@settings(deadline=None, max_examples=40)
@given(
    n=st.integers(1, 40),
    chunk=st.integers(1, 50),
    ignored=st.floats(0, 1),
    softcap=st.sampled_from([None, 5.0, 30.0]),
    with_bias=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_any_chunking_gives_the_plain_loss_and_gradients(n, chunk, ignored, softcap, with_bias, seed):
    hidden, weight, labels, bias = make(n=n, dtype=torch.float32, seed=seed, with_bias=with_bias)
    labels[torch.rand(n, generator=torch.Generator().manual_seed(seed)) < ignored] = -100
    ours = linear_cross_entropy(hidden, weight, labels, bias=bias, softcap=softcap, chunk_tokens=chunk)
    ref = plain(hidden.double(), weight.double(), labels, None if bias is None else bias.double(), softcap)
    torch.testing.assert_close(ours.double(), ref, rtol=1e-5, atol=1e-4)
    for a, b in zip(gradients(ours, hidden, weight, bias), gradients(ref, hidden, weight, bias), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_the_gradient_follows_the_scale_of_what_comes_after():
    hidden, weight, labels, _ = make(dtype=torch.float32)
    (once,) = gradients(linear_cross_entropy(hidden, weight, labels), weight)
    (scaled,) = gradients(linear_cross_entropy(hidden, weight, labels) / 7, weight)
    torch.testing.assert_close(scaled * 7, once)


def test_all_labels_ignored_is_zero_with_zero_gradients():
    hidden, weight, labels, _ = make(dtype=torch.float32)
    labels[:] = -100
    loss = linear_cross_entropy(hidden, weight, labels, chunk_tokens=8)
    assert loss.item() == 0
    assert all(not g.any() for g in gradients(loss, hidden, weight))


def test_bf16_is_within_bf16_rounding_of_fp64():
    hidden, weight, labels, _ = make(n=256, h=64, v=500)
    low = [t.detach().bfloat16().requires_grad_() for t in (hidden, weight)]
    ref = [t.detach().double().requires_grad_() for t in low]
    for a, b in zip(
        gradients(linear_cross_entropy(low[0], low[1], labels, chunk_tokens=100), *low),
        gradients(plain(ref[0], ref[1], labels), *ref),
        strict=True,
    ):
        assert ((a.double() - b).norm() / b.norm()).item() < 1e-2


def test_a_frozen_weight_gets_no_gradient():
    hidden, weight, labels, _ = make(dtype=torch.float32)
    loss = linear_cross_entropy(hidden, weight.detach(), labels)
    loss.backward()
    assert hidden.grad is not None
    assert weight.grad is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda h, w, y: (h, w[:, 1:], y), "do not fit"),
        (lambda h, w, y: (h, w, y[1:]), "one a token"),
        (lambda h, w, y: (h, w, torch.full_like(y, 53)), "label 53 is outside of the vocabulary of 53"),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    hidden, weight, labels, _ = make(dtype=torch.float32)
    with pytest.raises(ValueError, match=message):
        linear_cross_entropy(*change(hidden, weight, labels))
