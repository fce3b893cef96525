"""On a GPU, with layers compiled and recomputed, a step is the step of plain fp32 within bf16's rounding."""

import pytest
import ranks
import torch
import torch.distributed as dist
from sharded_cases import batches, build, training, whole

from training import model, parallel, step

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.mark.parametrize("recompute", ["none", "layers"])
def test_compiled_steps_on_a_gpu_are_those_of_the_cpu(recompute, monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(ranks._free_port()))
    dist.init_process_group("cpu:gloo,cuda:nccl", rank=0, world_size=1)
    try:
        config = training(ranks.QWEN2, 1, parallel={"recompute": recompute})
        on_cpu = build(config, 1)
        device = torch.device("cuda", 0)
        mesh = parallel.make_mesh(config.parallel, 1, 1, "cuda")
        trained = parallel.build(model.read_config(config.model), config.parallel, mesh, device, seed=config.seed)
        trained.model.load_state_dict(whole(on_cpu[0]))
        optimizer = step.make_optimizer(trained, config.optimizer)
        for number in (1, 2, 3):
            named = {"learning_rate": 1e-2, "clip_norm": 1.0}
            expected, _ = step.train_step(*on_cpu, batches(config, number, 0, 1), **named)
            there = [(ids.to(device), labels.to(device)) for ids, labels in batches(config, number, 0, 1)]
            loss, _ = step.train_step(trained, optimizer, mesh, there, **named)
            assert loss.item() == pytest.approx(expected.item(), rel=5e-3)
    finally:
        dist.destroy_process_group()
