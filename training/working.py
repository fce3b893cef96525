"""One rank has nothing to shard: its forward and backward run on a bf16 copy of the fp32 weights.

What FSDP does on one rank costs two copies of all weights and gradients a step. Here the copy is made once,
and the optimizer writes it together with the weights. Between steps the module holds its fp32 parameters:
checkpoints, optimizer state and export are those of a sharded run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import (
    Tensor,
    _foreach_add_,  # pyright: ignore[reportPrivateImportUsage]
    _foreach_norm,  # pyright: ignore[reportPrivateImportUsage]
    nn,
)
from torch.optim import AdamW


class WorkingWeights:
    """Copies of a module's parameters in the dtype of its matrix products.

    Args:
        module: with fp32 parameters; tied ones get one copy.
        dtype: of the copies.
    """

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        self._slots = [
            (part, name, parameter)
            for part in module.modules() for name, parameter in part._parameters.items() if parameter is not None
        ]
        self._copies = {
            p: nn.Parameter(p.detach().to(dtype, copy=True), p.requires_grad) for _, _, p in self._slots
        }
        self._followed: dict[nn.Parameter, int] = {}  # the parameter's version that the copy has

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Within, the module's parameters are the copies; gradients arrive there."""
        self._follow()
        try:
            for part, name, parameter in self._slots:
                part._parameters[name] = self._copies[parameter]
            yield
        finally:
            for part, name, parameter in self._slots:
                part._parameters[name] = parameter

    def keep_gradients(self) -> None:
        """Add the micro-batch's gradients to those of earlier ones, in fp32."""
        for parameter, copy in self._copies.items():
            if copy.grad is not None:
                parameter.grad = copy.grad.float() if parameter.grad is None else parameter.grad.add_(copy.grad)
                copy.grad = None

    def gradient_norm(self) -> Tensor:
        """Global 2-norm of the gradients: fp32 scalar."""
        found = [grad for _, _, grad in self._gradients()]
        return torch.linalg.vector_norm(torch.stack(_foreach_norm(found, 2, dtype=torch.float32)))

    @property
    def is_fused(self) -> bool:
        """Whether `update` can run: on a GPU. Elsewhere the optimizer itself updates, on kept gradients."""
        return next(iter(self._copies)).is_cuda

    def update(self, optimizer: AdamW, scale: Tensor, skip: Tensor) -> None:
        """One step of `optimizer`, weights, moments and copies in one pass; uses the gradients up.

        Args:
            optimizer: over the module's fp32 parameters; its learning rates are set.
            scale: gradients are divided by it; fp32 scalar on the GPU.
            skip: fp32 scalar; 1 leaves all as it is.
        """
        from training.kernels import adamw_

        groups = {p: group for group in optimizer.param_groups for p in group["params"]}
        steps = []
        with torch.no_grad():
            for parameter, copy, grad in self._gradients():
                group, state = groups[parameter], optimizer.state[parameter]
                if not state:  # as AdamW makes it with fused=True
                    state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
                    state["exp_avg"] = torch.zeros_like(parameter)
                    state["exp_avg_sq"] = torch.zeros_like(parameter)
                adamw_(
                    parameter, state["exp_avg"], state["exp_avg_sq"], state["step"], grad, copy,
                    scale=scale, skip=skip, learning_rate=group["lr"], betas=group["betas"], eps=group["eps"],
                    weight_decay=group["weight_decay"])
                steps.append(state["step"])
                copy.grad = None
            _foreach_add_(steps, 1 - skip)

    def _gradients(self) -> list[tuple[nn.Parameter, nn.Parameter, Tensor]]:
        """Parameter, copy and gradient: the kept sum of micro-batches, or the only micro-batch's own."""
        found = []
        for parameter, copy in self._copies.items():
            grad = copy.grad if parameter.grad is None else parameter.grad
            if grad is not None:
                found.append((parameter, copy, grad))
        return found

    @torch.no_grad()
    def _follow(self) -> None:
        """Copy anew what was changed by others than `update`: a load, or AdamW itself, which leaves no trace."""
        for parameter, copy in self._copies.items():
            if not self.is_fused or self._followed.get(parameter) != parameter._version:
                copy.copy_(parameter)
                self._followed[parameter] = parameter._version
