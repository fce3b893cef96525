"""Checkpoints when things break: storage that fails, a full disk, damaged files, hostile ones. Real ranks."""

import io
import json
import os
import pickle
from types import SimpleNamespace

import boto3
import checkpoint_cases as cases
import pytest
import ranks
import sharded_cases
import torch
from loop_cases import work

from training import checkpoint
from training.checkpoint import DamagedError
from training.checkpoint_files import PlainValuesPlanner, read_metadata
from training.config import CheckpointConfig, TrainConfig
from training.storage import RunFolder

pytestmark = pytest.mark.slow


def steps_in(run):
    return checkpoint.complete_steps(RunFolder(str(run.parent), run.name))


def metrics(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The folder of a run of six steps on two ranks, saved every two; nobody may change it."""
    storage = tmp_path_factory.mktemp("undisturbed")
    assert ranks.run(2, work, ranks.job(storage, world=2)) == [None, None]
    return storage / "tiny"


def test_each_save_tells_what_it_cost_the_training_and_what_went_on_beside_it(undisturbed):
    stalls = {r["checkpoint_step"]: r["checkpoint_stall_seconds"]
              for r in metrics(undisturbed) if "checkpoint_stall_seconds" in r}
    assert list(stalls) == [2, 4]  # that of the last step has no later record
    assert all(seconds > 0 for seconds in stalls.values())
    mark = json.loads((undisturbed / "checkpoints" / "step-00000006" / "complete.json").read_text())
    assert mark["seconds"] > 0
    assert set(mark["files"]) == {".metadata", "__0_0.distcp", "__1_0.distcp"}


def test_storage_that_fails_for_a_while_costs_no_step(tmp_path, undisturbed):
    job = ranks.job(tmp_path, world=2)
    assert ranks.run(2, cases.work_over_failing_storage, job, 2, "soon") == [None, None]
    assert ranks.losses(tmp_path / "tiny") == ranks.losses(undisturbed)
    assert steps_in(tmp_path / "tiny") == [4, 6]
    failed = [r["step"] for r in metrics(tmp_path / "tiny") if r.get("checkpoint_failed_attempts")]
    assert failed
    assert failed[0] in (3, 4)  # trained while step 2 was tried again


def test_a_save_that_fails_for_good_costs_one_checkpoint_and_not_the_run(tmp_path, undisturbed):
    job = ranks.job(tmp_path, world=2, checkpoint={"every_steps": 2, "retry_minutes": 0})
    assert ranks.run(2, cases.work_over_failing_storage, job, 4, 5) == [None, None]
    assert ranks.losses(tmp_path / "tiny") == ranks.losses(undisturbed)
    assert steps_in(tmp_path / "tiny") == [2, 6]
    assert any("checkpoint of step 4 was not saved" in r.get("checkpoint_failure", "")
               for r in metrics(tmp_path / "tiny"))


@pytest.mark.long
def test_two_saves_in_a_row_that_fail_end_the_run_and_earlier_checkpoints_stay(tmp_path):
    job = ranks.job(tmp_path, world=2, checkpoint={"every_steps": 1, "retry_minutes": 0})
    reasons = ranks.run(2, cases.work_over_failing_storage, job, 3, None)
    assert reasons[0] == reasons[1]
    assert reasons[0].startswith("checkpoint of step 4 was not saved: ")
    assert [step for step, _ in ranks.losses(tmp_path / "tiny")] == [1, 2, 3, 4]
    assert sorted(p.name for p in (tmp_path / "tiny" / "earlier").glob("*/complete.json"))


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 640 KiB: one checkpoint of the tiny model fits, two do not."""
    with cases.small_disk(tmp_path / "disk", 640) as path:
        yield path


@pytest.mark.parametrize("function", [
    work, pytest.param(cases.work_on_a_disk_that_hides_how_full_it_is, marks=pytest.mark.long)])
def test_a_full_disk_is_named_with_its_bytes_and_the_earlier_checkpoint_is_whole(small_disk, function):
    job = ranks.job(small_disk, world=2, steps=3, checkpoint={"every_steps": 1, "keep": 2})
    reasons = ranks.run(2, function, job)
    assert reasons[0] == reasons[1]
    path = small_disk / "tiny" / "checkpoints" / "step-00000003"
    for part in ("checkpoint of step 3 was not saved: ", f"{path} needs ", " bytes and ", " are free there",
                 "the newest one is of step 1"):
        assert part in reasons[0]
    assert [p.name for p in path.parent.iterdir()] == ["step-00000001"]
    assert steps_in(small_disk / "tiny") == [1]


def damage(run, step):
    """Change one byte in the middle of a shard: its size stays."""
    shard = run / "checkpoints" / f"step-{step:08d}" / "__1_0.distcp"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)


def test_a_damaged_checkpoint_is_said_and_the_one_before_it_is_used(tmp_path):
    job, run = ranks.job(tmp_path, world=2), tmp_path / "tiny"
    ranks.run(2, work, job)
    first = ranks.losses(run)
    damage(run, 6)
    assert ranks.run(2, work, job) == [None, None]
    said = "checkpoint of step 6 cannot be used: checkpoints/step-00000006/__1_0.distcp is damaged: checksum "
    noted = json.loads((run / "run.json").read_text())
    assert noted["resumed_at"] == 4
    (line,) = noted["damaged_checkpoints"]
    assert line.startswith(said)
    assert ranks.losses(run) == first
    assert steps_in(run) == [4, 6]  # 6 was trained and saved anew
    damage(run, 6)
    damage(run, 4)
    for _ in range(2):  # the second start finds no complete.json any more, and does not begin anew either
        reasons = ranks.run(2, work, job)
        assert reasons[0] == reasons[1]
        assert "has checkpoints of steps 4, 6, and all are damaged" in reasons[0]
    assert ranks.losses(run) == first


class Hostile:
    def __reduce__(self):
        return os.system, ("echo hacked",)


def test_a_hostile_pickle_is_refused_and_not_run(capfd):
    with pytest.raises(DamagedError, match=r"step/\.metadata is refused: it asks for \w+\.system"):
        read_metadata(io.BytesIO(pickle.dumps(Hostile())), "step/.metadata")
    with pytest.raises(DamagedError, match=r"it holds a dict, not a checkpoint's metadata"):
        read_metadata(io.BytesIO(pickle.dumps({})), "step/.metadata")
    with pytest.raises(DamagedError, match="is refused"):
        read_metadata(io.BytesIO(b"\x80\x04K"), "step/.metadata")
    packed = io.BytesIO()
    torch.save(Hostile(), packed)
    packed.seek(0)
    asked = SimpleNamespace(storage_index=SimpleNamespace(fqn="optimizer.param_groups.0.lr"))
    with pytest.raises(DamagedError, match=r"optimizer\.param_groups\.0\.lr of the checkpoint is refused"):
        PlainValuesPlanner().load_bytes(asked, packed)  # pyright: ignore[reportArgumentType]
    assert "hacked" not in capfd.readouterr().out


def test_the_newest_stay_and_those_at_multiples_for_good(tmp_path):
    ranks.run(1, sharded_cases.save_many, ranks.QWEN2, str(tmp_path), [2, 3, 4, 6, 8, 9, 10], 2, 4)
    assert steps_in(tmp_path / "run") == [4, 8, 9, 10]
    assert len(list((tmp_path / "run" / "checkpoints").iterdir())) == 4


def test_what_is_kept_may_change_between_two_starts_of_a_run():
    changed = TrainConfig(checkpoint=CheckpointConfig(every_steps=7, keep=5, keep_every=70, retry_minutes=1))
    assert changed.digest() == TrainConfig().digest()


@pytest.fixture
def bucket(tmp_path, monkeypatch):
    """An empty bucket of a stand-in for S3 on this machine: the variables that lead to it."""
    server = pytest.importorskip("moto.server").ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    variables = {"AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ACCESS_KEY_ID": "testing",
                 "AWS_SECRET_ACCESS_KEY": "testing", "AWS_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true",
                 "TMPDIR": str(tmp_path)}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    boto3.client("s3", region_name="us-east-1").create_bucket(Bucket="runs")
    yield variables
    server.stop()


@pytest.mark.long
def test_checkpoints_on_s3_are_saved_verified_and_resumed(bucket, undisturbed, tmp_path):
    job = ranks.job("s3://runs/some", world=2)
    assert ranks.run(2, cases.work_on_s3, job, bucket) == [None, None]
    folder = RunFolder("s3://runs/some", "tiny")
    assert checkpoint.complete_steps(folder) == [4, 6]
    shard = "checkpoints/step-00000006/__1_0.distcp"
    with folder.filesystem.open_input_stream(folder.path(shard)) as stream:
        data = bytearray(stream.read())
    data[len(data) // 2] ^= 1
    with folder.filesystem.open_output_stream(folder.path(shard)) as stream:
        stream.write(bytes(data))
    assert ranks.run(2, cases.work_on_s3, job, bucket) == [None, None]
    assert shard in folder.read_json("run.json")["damaged_checkpoints"][0]
    lines = (folder.read_text("metrics.jsonl") or "").splitlines()
    assert [(r["step"], r["loss"]) for r in map(json.loads, lines)][-2:] == ranks.losses(undisturbed)[-2:]
    assert not list(tmp_path.glob("eagleray-*/*distcp*[0-9a-f]"))  # this node's copies are gone
