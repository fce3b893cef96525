"""Where a job may run."""

import pytest
from pydantic import ValidationError

from settings import SettingsError, load_settings
from training.config import Placement, TrainJob


def test_nccl_without_gpus_is_refused_with_what_works():
    with pytest.raises(ValidationError, match="backend nccl needs device cuda; with device cpu use backend gloo"):
        Placement(nodes=1, workers_per_node=2, device="cpu", backend="nccl", storage="runs")


@pytest.mark.parametrize(("device", "backend"), [("cuda", "nccl"), ("cuda", "gloo"), ("cpu", "gloo")])
def test_what_works_is_taken(device, backend):
    place = Placement(nodes=2, workers_per_node=4, device=device, backend=backend, storage="runs")
    assert place.world_size == 8


def job(require="auto", **placement):
    where = {"nodes": 2, "workers_per_node": 4, "efa_per_node": 1, "storage": "runs", **placement}
    training = {"transport": {"require": require}}
    return TrainJob.model_validate({"name": "x", "training": training, "placement": where})


ON_CPUS = {"device": "cpu", "backend": "gloo"}


@pytest.mark.parametrize(("require", "placement", "required"), [
    ("auto", {}, True),
    ("auto", {"nodes": 1}, False),
    ("auto", {"efa_per_node": 0}, False),
    ("auto", ON_CPUS, False),
    ("efa", {"efa_per_node": 0}, True),
    ("any", {}, False),
])
def test_efa_is_required_by_default_where_nodes_with_efa_talk(require, placement, required):
    assert job(require, **placement).requires_efa is required


@pytest.mark.parametrize(("placement", "message"), [
    ({"nodes": 1}, "training.transport.require efa: on one node nothing crosses the network"),
    (ON_CPUS, "training.transport.require efa: backend gloo moves bytes over TCP only; use auto or any"),
])
def test_efa_that_could_never_be_proven_is_refused(placement, message):
    with pytest.raises(ValidationError, match=message):
        job("efa", **placement)


def test_how_the_wire_is_checked_does_not_make_another_training():
    assert job("any").config_hash() == job("efa").config_hash()


def test_settings_hand_over_the_efa_interfaces_and_refuse_efa_on_one_node():
    assert load_settings("h100").train_job("runs").placement.efa_per_node == 32
    assert load_settings().train_job("runs").requires_efa
    with pytest.raises(SettingsError, match=r"training\.transport\.require efa: with gpu\.nodes 1 nothing crosses"):
        load_settings("l4", "gpu.nodes=1,training.transport.require=efa")


@pytest.mark.parametrize("name", ["../other", "/etc", "a/b", ".hidden", "", "a\n", "a b", "x" * 300])
def test_a_runs_name_leads_nowhere_but_into_its_storage(name):
    with pytest.raises(ValidationError, match="name"):
        TrainJob.model_validate({"name": name, "training": {}, "placement": {
            "nodes": 1, "workers_per_node": 1, "storage": "/tmp/runs"}})
