"""Nothing of the job changes without being listed, and nothing is listed that did not change."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ops.errors import CommandError
from ops.rehearsal import laptop_training, write_volume
from ops.replacements import LaptopPlaces, for_laptop, replacements
from ops.submitted_job import read_submitted_job
from tests.ops import hand_made

PLACES = LaptopPlaces(working_dir="/l/code", text="/l/t.txt", tokenizer="/l/tok", storage="/l/runs")


@pytest.fixture(scope="module")
def submitted(synth_l4):
    return read_submitted_job(synth_l4.outdir)


@pytest.fixture(scope="module")
def rehearsed(submitted):
    return for_laptop(submitted, laptop_training(), PLACES, 900)


def leaves(value, path=()):
    if isinstance(value, dict):
        return {leaf for key, below in value.items() for leaf in leaves(below, (*path, key))}
    return {(".".join(path), json.dumps(value))}


def test_the_file_that_runs_is_the_synthesized_one_with_the_listed_changes(submitted, rehearsed):
    listed = {r.setting.removeprefix("train.json ") for r in replacements(submitted, rehearsed)}
    before = json.loads(submitted.files[submitted.job_file])
    after = json.loads(rehearsed.files[rehearsed.job_file])
    changed = {path for path, _ in leaves(before) ^ leaves(after)}
    unlisted = {path for path in changed if not any(path == s or path.startswith(f"{s}.") for s in listed)}
    assert changed
    assert not unlisted


@pytest.mark.parametrize("group", ["head", "workers"])
def test_every_variable_of_the_pods_runs_or_is_listed(submitted, rehearsed, group):
    before, after = getattr(submitted, group), getattr(rehearsed, group)
    listed = {r.setting for r in replacements(submitted, rehearsed)}
    assert before.environment
    for name, value in before.environment.items():
        assert after.environment.get(name) == value or f"{group} env.{name}" in listed


def test_every_variable_of_the_job_runs_or_is_listed(submitted, rehearsed):
    before, after = submitted.runtime_env["env_vars"], rehearsed.runtime_env["env_vars"]
    listed = {r.setting for r in replacements(submitted, rehearsed)}
    for name in before.keys() | after.keys():
        assert after.get(name) == before.get(name) or f"runtime_env env_vars.{name}" in listed


def test_only_train_json_of_the_code_changes(submitted, rehearsed):
    changed = {path for path in submitted.files if submitted.files[path] != rehearsed.files[path]}
    assert changed == {submitted.job_file}
    assert rehearsed.entrypoint == submitted.entrypoint
    assert rehearsed.runtime_env["excludes"] == submitted.runtime_env["excludes"]


def test_nothing_unchanged_is_listed(submitted, rehearsed):
    assert not [r for r in replacements(submitted, rehearsed) if r.before == r.after]
    assert replacements(submitted, submitted) == []


def test_what_a_laptop_cannot_have_is_replaced(submitted, rehearsed):
    found = {r.setting: (r.before, r.after) for r in replacements(submitted, rehearsed)}
    assert found["train.json placement.device"] == ("cuda", "cpu")
    assert found["train.json placement.backend"] == ("nccl", "gloo")
    assert found["train.json placement.storage"][1] == "/l/runs"
    assert found["workers env.NCCL_NET"] == ("Libfabric", None)
    assert found["train.json placement.link_mbps"] == (40000, None)
    assert found["train.json placement.efa_per_node"] == (1, 0)
    assert found["workers env.GLOO_SOCKET_IFNAME"] == ("eth0", None)
    assert found["runtime_env env_vars.GLOO_SOCKET_IFNAME"] == (None, "lo")
    assert found["workers ray start.num-gpus"] == ("4", "0")
    assert "train.json training.max_failures" not in found


def test_a_change_without_a_reason_stops_the_rehearsal(submitted, rehearsed):
    with pytest.raises(CommandError, match="entrypoint command"):
        replacements(submitted, replace(rehearsed, entrypoint="python other.py"))


def test_steps_are_listed(submitted):
    short = for_laptop(submitted, laptop_training(), PLACES, 900, steps=3)
    found = {r.setting: r.after for r in replacements(submitted, short)}
    assert found["train.json training.steps"] == 3


def test_tokens_make_way_for_the_steps_of_a_rehearsal(submitted):
    training = submitted.job.training.model_copy(update={"steps": None, "tokens": 10**9})
    long = replace(submitted, job=submitted.job.model_copy(update={"training": training}))
    rehearsed = for_laptop(long, laptop_training(), PLACES, 900)
    assert (rehearsed.job.training.steps, rehearsed.job.training.tokens) == (100, None)
    assert {r.setting: r.after for r in replacements(long, rehearsed)}["train.json training.tokens"] is None


def test_a_job_that_insists_on_efa_is_rehearsed_without(submitted):
    training = submitted.job.training.model_copy(update={
        "transport": submitted.job.training.transport.model_copy(update={"require": "efa"})})
    insists = replace(submitted, job=submitted.job.model_copy(update={"training": training}))
    found = {r.setting: (r.before, r.after)
             for r in replacements(insists, for_laptop(insists, laptop_training(), PLACES, 900))}
    assert found["train.json training.transport.require"] == ("efa", "auto")


def test_a_single_node_job_is_rehearsed_on_one_node(submitted):
    placement = submitted.job.placement.model_copy(update={"nodes": 1})
    one = replace(submitted, job=submitted.job.model_copy(update={"placement": placement}))
    assert for_laptop(one, laptop_training(), PLACES, 900).workers.count == 1


@pytest.mark.parametrize(("nodes", "fewest", "rehearsed"), [(2, 1, 1), (4, 1, 1), (4, 2, None)])
def test_a_job_that_may_have_fewer_nodes_is_rehearsed_so_where_two_are_enough(submitted, nodes, fewest, rehearsed):
    placement = submitted.job.placement.model_copy(update={"nodes": nodes, "min_nodes": fewest})
    elastic = replace(submitted, job=submitted.job.model_copy(update={"placement": placement}))
    found = for_laptop(elastic, laptop_training(), PLACES, 900)
    assert found.job.placement.min_nodes == rehearsed
    assert replacements(elastic, found)


def test_a_mistake_in_the_local_config_names_the_file(submitted):
    with pytest.raises(CommandError, match=r"config/local\.yaml.*steps"):
        for_laptop(submitted, {"steps": "many"}, PLACES, 900)


def test_the_volume_looks_as_the_kubelet_makes_it(tmp_path):
    job = read_submitted_job(hand_made.write(tmp_path, hand_made.objects({"training/train.py": "print(1)\n"})))
    write_volume(job, tmp_path / "pod")
    code = tmp_path / "pod" / hand_made.CODE.lstrip("/")
    assert (code / "training" / "train.py").read_text() == "print(1)\n"
    assert (code / "training").is_symlink()
    assert (code / "train.json").readlink() == Path("..data/train.json")


def test_the_rehearsal_asks_for_a_token_as_the_deployed_cluster_does(submitted, rehearsed):
    assert rehearsed.head.environment["RAY_AUTH_MODE"] == rehearsed.workers.environment["RAY_AUTH_MODE"] == "token"
    found = {r.setting: (r.before, r.after) for r in replacements(submitted, rehearsed)}
    before, after = found["workers env.RAY_AUTH_TOKEN"]
    assert "secretKeyRef" in before
    assert after == "made by the local cluster"
