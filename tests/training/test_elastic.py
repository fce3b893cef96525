"""A run that goes on with fewer nodes: the same step on each number of them, waited for, and left for more."""

from typing import Any

import pytest
import ranks
import torch
from loop_cases import work
from pydantic import ValidationError

from eagleray import catalog
from training import data
from training.config import AUTO, Placement, TrainJob
from training.errors import JobError
from training.nodes import OTHERS_S, STEADY_S, Room, await_nodes
from training.place import on_its_nodes
from training.shape import known_shape
from training.topology import TopologyError, resolve, resolve_on
from training.workers import trainer


def elastic(nodes, fewest, training=None, instance="g6.12xlarge"):
    found = catalog.instance_type(instance)
    place = Placement(nodes=nodes, min_nodes=fewest, workers_per_node=found.gpus, storage="runs", gpu=found.gpu,
                      gpu_memory_mib=found.gpu_mem_mib, link_mbps=found.net_mbps)
    return TrainJob.model_validate({"name": "t", "training": training or {}, "placement": place.model_dump()})


def on_cpus(folder, **training):
    job = ranks.job(folder, **{"accumulation": 2, **training})
    job["placement"] |= {"nodes": 2, "min_nodes": 1}
    return job


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize(("nodes", "fewest", "training"), [
    (2, 1, {}),
    (3, 1, {"sequence_length": 1024}),
    (4, 2, {}),
    (3, 2, {"accumulation": 2, "micro_batch": 2}),
    (4, 3, {"accumulation": 1}),
    (3, 2, {"micro_batch": 1}),
    (2, 1, {"tokens": "1e9"}),
])
def test_a_step_is_the_same_on_each_number_of_nodes(nodes, fewest, training, is_known):
    job = elastic(nodes, fewest, training)
    shape = known_shape(job.training.model) if is_known else None
    full, _ = resolve(job, shape)
    for count in range(fewest, nodes + 1):
        found, reasons = resolve_on(job, shape, count)
        assert found.placement.nodes == count
        assert found.tokens_per_step == full.tokens_per_step
        assert found.training.steps == full.training.steps
        assert found.training.parallel.reduce_dtype == full.training.parallel.reduce_dtype
        if "micro_batch" in training:
            assert found.training.micro_batch == training["micro_batch"]
        assert AUTO not in (found.training.micro_batch, found.training.accumulation)
        assert count == nodes or reasons[0].startswith(f"nodes {count} of {nodes}: micro_batch ")


def test_fewer_nodes_get_a_mesh_of_their_own():
    job = elastic(2, 1, {"sequence_length": 4096})
    shape = known_shape(job.training.model)
    full, reasons = resolve(job, shape)
    alone, _ = resolve_on(job, shape, 1)
    assert (full.training.parallel.sharding, alone.training.parallel.sharding) == ("hybrid", "full")
    assert reasons[-1].startswith(f"min_nodes 1: a step there is the same {full.tokens_per_step:,} tokens, ")


@pytest.mark.parametrize(("job", "message"), [
    (elastic(3, 2, {"accumulation": 1, "micro_batch": 1}), "accumulation 1 cannot be shared out to 2 to 3 nodes .*"
     "use auto, a multiple of 2, or another gpu.min_nodes"),
    (elastic(9, 1), "accumulation auto: a step that 1 to 9 nodes .* can share out alike has at least 20,643,840 "
     "tokens, .* set accumulation to a multiple of 280"),
    (elastic(4, 1, {"model": {"name": "Qwen/Qwen2.5-7B"}}), r"on 1 of 4 nodes \(gpu.min_nodes, gpu.nodes\) "
     "training.micro_batch auto does not fit: .*; or use a larger gpu.min_nodes"),
])
def test_a_size_that_cannot_take_the_step_is_refused_before_anything_starts(job, message):
    with pytest.raises(TopologyError, match=message):
        resolve(job, known_shape(job.training.model))


def test_all_sizes_train_on_the_same_sequences():
    class Numbers:
        def row(self, number):
            return (torch.full((1,), number).numpy(),) * 2

    sequences: Any = Numbers()
    job = elastic(4, 2, {"micro_batch": 2, "accumulation": 6})
    trained = []
    for count in (2, 3, 4):
        found, _ = resolve_on(job, None, count)
        world = found.placement.world_size
        batches = [batch for rank in range(world)
                   for batch in data.micro_batches(sequences, found.training, 3, rank, world, torch.device("cpu"))]
        trained.append(sorted(torch.cat([ids for ids, _ in batches]).flatten().tolist()))
    assert trained[0] == trained[1] == trained[2]


@pytest.mark.long
def test_one_rank_trains_as_two_would(tmp_path):
    assert ranks.run(1, work, on_cpus(tmp_path / "one"), 1) == [None]
    assert ranks.run(2, work, on_cpus(tmp_path / "two"), 1) == [None, None]
    one, two = (ranks.losses(tmp_path / folder / "tiny") for folder in ("one", "two"))
    assert one == [(step, pytest.approx(loss, rel=1e-4)) for step, loss in two]


def test_ranks_that_fill_no_nodes_are_refused():
    job = elastic(2, 1)
    assert on_its_nodes(job, 4).placement.nodes == 1
    for world in (3, 7, 12):
        with pytest.raises(JobError, match=f"{world} ranks do not fill 1 to 2 nodes with 4 each"):
            on_its_nodes(job, world)


def test_a_placement_whose_fewest_nodes_are_all_is_refused():
    with pytest.raises(ValidationError, match="min_nodes 2 is not below nodes 2; leave it out"):
        elastic(2, 2)


def test_efa_is_wanted_of_the_nodes_that_are_there(tmp_path):
    job = elastic(3, 1)
    job = job.model_copy(update={"placement": job.placement.model_copy(update={"efa_per_node": 1})})
    assert on_its_nodes(job, 8).requires_efa
    assert not on_its_nodes(job, 4).requires_efa


@pytest.mark.parametrize(("fewest", "workers", "tries", "hooks"), [(1, (1, 2), 24, 1), (None, 2, 3, 0)])
def test_ray_train_gets_the_fewest_and_all_workers_and_an_end_to_its_wait(tmp_path, fewest, workers, tries, hooks):
    job = on_cpus(tmp_path)
    job["placement"]["min_nodes"] = fewest
    made = trainer(TrainJob.model_validate(job), lambda _: {}, 60)
    assert made.scaling_config.num_workers == workers
    assert made.run_config.failure_config is not None
    assert made.run_config.failure_config.controller_failure_limit == tries
    assert len(made.run_config.callbacks or ()) == hooks


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now

    def pause(self, seconds):
        self.now += seconds


@pytest.fixture
def asked(monkeypatch):
    """Ranks that nodes were asked for, and -1 once that is taken back."""
    asked = []
    monkeypatch.setattr("training.nodes.placement_group", lambda bundles: asked.append(len(bundles)))
    monkeypatch.setattr("training.nodes.remove_placement_group", lambda _: asked.append(-1))
    return asked


@pytest.mark.parametrize(("comes", "waited"), [
    ([3], 0), ([1, 1, 2, 3], 10), ([1, 1] + [2] * 1000, OTHERS_S + 5), ([2, 2, 1] + [2] * 1000, OTHERS_S + 10),
])
def test_a_run_starts_with_all_its_nodes_or_once_no_more_come(asked, comes, waited):
    clock, seen = Clock(), iter(comes)
    await_nodes(elastic(3, 2).placement, 2400, lambda _: next(seen), clock, clock.pause)
    assert clock.now - 100 == waited
    assert asked == ([12, -1] if waited else [])


def test_a_run_whose_fewest_nodes_do_not_come_ends_and_asks_for_none_any_more(asked):
    clock = Clock()
    with pytest.raises(JobError, match=r"2 of 3 nodes \(gpu.min_nodes, gpu.nodes\) were not there within 600 s"):
        await_nodes(elastic(3, 2).placement, 600, lambda _: 1, clock, clock.pause)
    assert clock.now - 100 == 600
    assert asked == [12, -1]


def test_a_node_must_stay_before_a_run_leaves_for_it():
    clock, free = Clock(), [0]
    room = Room(elastic(3, 1).placement, 2, lambda _: free[0], clock)

    def seconds_until_it_leaves():
        began = clock.now
        while not room() and clock.now - began < 1000:
            clock.now += 2
        return clock.now - began

    assert seconds_until_it_leaves() == 1000
    free[0] = 1
    assert STEADY_S <= seconds_until_it_leaves() < STEADY_S + 20
    free[0] = 0
    assert seconds_until_it_leaves() == 1000
    assert not Room(elastic(3, 1).placement, 3, lambda _: 5, clock)()
