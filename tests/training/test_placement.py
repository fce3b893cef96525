"""Where a job may run."""

import pytest
from pydantic import ValidationError

from training.config import Placement


def test_nccl_without_gpus_is_refused_with_what_works():
    with pytest.raises(ValidationError, match="backend nccl needs device cuda; with device cpu use backend gloo"):
        Placement(nodes=1, workers_per_node=2, device="cpu", backend="nccl", storage="runs")


@pytest.mark.parametrize(("device", "backend"), [("cuda", "nccl"), ("cuda", "gloo"), ("cpu", "gloo")])
def test_what_works_is_taken(device, backend):
    place = Placement(nodes=2, workers_per_node=4, device=device, backend=backend, storage="runs")
    assert place.world_size == 8
