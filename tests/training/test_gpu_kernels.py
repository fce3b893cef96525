"""The Triton kernels compute what their plain PyTorch equals compute."""

import pytest
import torch

from training import fp8, loss
from training.loss import linear_cross_entropy

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def on_gpu(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, device="cuda").to(dtype)


@pytest.mark.parametrize("vocabulary", [50, 4096, 10_007])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_one_pass_cross_entropy(vocabulary, dtype):
    logits, labels = 4 * on_gpu(33, vocabulary, dtype=dtype), torch.randint(0, vocabulary, (33,), device="cuda")
    labels[::5] = -100
    expected_loss, expected = loss._chunk_loss_and_gradient(logits, labels, None)
    found_loss, found = loss._loss_and_gradient(logits.clone(), labels, None)
    torch.testing.assert_close(found_loss, expected_loss, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(found, expected, rtol=1e-2 if dtype is torch.bfloat16 else 1e-5, atol=1e-6)
    assert not found[::5].any()


def test_loss_from_hidden_states_is_that_of_fp64():
    hidden, weight = on_gpu(300, 64).requires_grad_(), (on_gpu(1000, 64) / 8).requires_grad_()
    labels = torch.randint(0, 1000, (300,), device="cuda")
    found = linear_cross_entropy(hidden, weight, labels, chunk_tokens=128)
    found.backward()
    wide = [t.detach().double().requires_grad_() for t in (hidden, weight)]
    right = torch.nn.functional.cross_entropy(wide[0] @ wide[1].t(), labels, reduction="sum")
    right.backward()
    assert found.item() == pytest.approx(right.item(), rel=1e-3)
    for tensor, exact in zip((hidden, weight), wide, strict=True):
        assert tensor.grad is not None
        assert exact.grad is not None
        assert (tensor.grad.double() - exact.grad).norm() < 0.01 * exact.grad.norm()


@pytest.mark.parametrize("gradient_dtype", [torch.bfloat16, torch.float32])
def test_adamw_in_one_pass_is_torchs_adamw(gradient_dtype):
    from training.kernels import adamw_

    named = {"betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
    theirs = torch.nn.Parameter(on_gpu(5000, dtype=torch.float32))
    optimizer = torch.optim.AdamW([theirs], lr=1e-2, fused=True, **named)
    ours, copy = theirs.detach().clone(), torch.empty_like(theirs, dtype=torch.bfloat16)
    moments, steps = [torch.zeros_like(ours), torch.zeros_like(ours)], torch.zeros((), device="cuda")
    for skip in (0.0, 0.0, 1.0, 0.0):
        gradient = on_gpu(5000, dtype=gradient_dtype)
        adamw_(ours, moments[0], moments[1], steps, gradient, copy, scale=torch.tensor(2.0, device="cuda"),
               skip=torch.tensor(skip, device="cuda"), learning_rate=1e-2, **named)
        steps += 1 - skip
        if not skip:
            theirs.grad = gradient.float() / 2
            optimizer.step()
        torch.testing.assert_close(ours, theirs.detach(), rtol=1e-5, atol=1e-6)
        assert torch.equal(copy, ours.bfloat16())


@pytest.mark.parametrize("columns", [128, 1040, 8960])
def test_quantised_silu_product_and_its_gradient(columns):
    gate, d = on_gpu(37, columns), on_gpu(37, columns)
    up = (on_gpu(37, columns) * torch.logspace(-3, 3, 37, device="cuda")[:, None]).bfloat16()
    exact = [gate.double().requires_grad_(), up.double().requires_grad_()]
    product = torch.nn.functional.silu(exact[0]) * exact[1]
    product.backward(d.double())
    found = [*fp8.silu_product(gate, up), *fp8.silu_product_gradient(d, gate, up)]
    gradients = [e.grad for e in exact if e.grad is not None]
    for right, q, scale in zip((product.detach(), *gradients), found[::2], found[1::2], strict=True):
        back = q.double() * scale
        assert ((back - right).norm(dim=1) < 2**-4 * right.norm(dim=1)).all()
        assert (q.float().abs().amax(1) > fp8.LARGEST / 2 - 32).all(), "the scale uses the range"


@pytest.mark.parametrize("shape", [(128, 128), (200, 48), (1000, 1536)])
def test_transposed_rows_of_one_scale(shape):
    q, scale = fp8.quantise_rows(on_gpu(*shape) * torch.logspace(-3, 3, shape[0], device="cuda")[:, None])
    expected = (q.float() * (scale / scale.amax())).to(fp8.E4M3).t().contiguous()
    assert torch.equal(fp8.transpose_rescaled(q, scale, scale.amax()).float(), expected.float())
