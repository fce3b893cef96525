"""The loop of a job: what it leaves behind, how it resumes, and what it refuses. Real ranks, no Ray."""

import json

import pytest
import ranks
from loop_cases import spoil_weights_after, work

from training.config import TrainJob
from training.startup import PHASES
from training.storage import RunFolder
from training.summary import summarise

pytestmark = pytest.mark.slow


def summary(job, folder, failure=None):
    parsed = TrainJob.model_validate(job)
    return summarise(parsed, RunFolder(str(folder), job["name"]), failure)


def test_a_run_leaves_metrics_checkpoints_and_a_summary(tmp_path):
    job = ranks.job(tmp_path, world=2)
    assert ranks.run(2, work, job) == [None, None]
    run = tmp_path / "tiny"
    assert [step for step, _ in ranks.losses(run)] == [1, 2, 3, 4, 5, 6]
    assert sorted(p.name for p in (run / "checkpoints").iterdir()) == ["step-00000004", "step-00000006"]
    record = json.loads((run / "metrics.jsonl").read_text().splitlines()[0])
    assert record["learning_rate"] == pytest.approx(1.5e-3)
    assert record["tokens_per_second"] == pytest.approx(2 * 2 * 16 / record["step_seconds"])
    assert (record["memory_gib"] > 0, record["memory_reserved_gib"], record["alloc_retries"]) == (True, None, None)
    found = summary(job, tmp_path)
    assert found["status"] == "succeeded"
    assert (found["steps"], found["world_size"], found["nodes"], found["restarts"]) == (6, 2, 1, 0)
    assert (found["first_loss"], found["last_loss"]) == (ranks.losses(run)[0][1], ranks.losses(run)[-1][1])
    assert found["checkpoint"] == f"{run}/checkpoints/step-00000006"
    times = found["step_seconds"]
    assert times["p50"] <= times["p90"] <= times["p99"]
    # Two ranks are one node here, which had its hours and bills nobody.
    assert 0 < found["hours"] == found["node_hours"] < 1
    assert found["rented"] is None
    (start,) = found["startup"]
    assert list(start["seconds"]) == list(PHASES)
    assert start["total"] == pytest.approx(sum(start["seconds"].values()), abs=0.01)
    assert found["mfu"] is None  # no peak is known for a CPU
    assert found["transport"]["verdict"] == "unproven"
    assert [r["rank"] for r in found["transport"]["ranks"]] == [0, 1]
    assert found["config_hash"] == TrainJob.model_validate(job).config_hash()


def test_a_run_started_again_goes_on_from_its_checkpoint_with_the_same_losses(tmp_path):
    dropout = {**ranks.QWEN2, "attention_dropout": 0.2}
    model = {"weights": "random", "architecture": dropout}
    once = ranks.job(tmp_path / "once", world=2, model=model)
    ranks.run(2, work, once)
    broken = ranks.job(tmp_path / "broken", world=2, model=model, max_skipped_steps=0)
    assert ranks.run(2, work, broken, None, [5])[0].startswith("step 5: loss is nan ")
    assert ranks.losses(tmp_path / "broken" / "tiny")[4] == (5, None)
    assert ranks.run(2, work, broken) == [None, None]
    assert ranks.losses(tmp_path / "broken" / "tiny") == ranks.losses(tmp_path / "once" / "tiny")
    again = summary(broken, tmp_path / "broken")
    assert (again["restarts"], [start["resumed_at"] for start in again["startup"]]) == (1, [0, 4])
    assert json.loads((tmp_path / "broken" / "tiny" / "run.json").read_text())["resumed_at"] == 4


def test_a_finished_run_started_again_trains_nothing(tmp_path):
    job = ranks.job(tmp_path)
    ranks.run(1, work, job)
    before = (tmp_path / "tiny" / "metrics.jsonl").read_text()
    assert ranks.run(1, work, job) == [None]
    assert (tmp_path / "tiny" / "metrics.jsonl").read_text() == before


def test_a_step_that_is_not_finite_is_skipped_counted_and_told_and_training_goes_on(tmp_path):
    job = ranks.job(tmp_path, world=2, max_skipped_steps=1)
    assert ranks.run(2, work, job, None, [3, 5]) == [None, None]
    records = [json.loads(line) for line in (tmp_path / "tiny" / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == [1, 2, 3, 4, 5, 6]
    assert [record.get("skipped", False) for record in records] == [False, False, True, False, True, False]
    assert (records[2]["loss"], records[2]["reason"], records[2]["sequences"]) == (None, "loss is nan", [8, 11])
    found = summary(job, tmp_path)
    assert (found["status"], found["skipped_steps"], found["steps"]) == ("succeeded", 2, 6)
    assert (found["first_loss"], found["last_loss"]) == (records[0]["loss"], records[5]["loss"])
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_too_many_steps_in_a_row_that_are_not_finite_end_the_run_before_its_checkpoint(tmp_path):
    job = ranks.job(tmp_path, world=2, max_skipped_steps=1)
    reasons = ranks.run(2, work, job, None, [3, 4])
    assert reasons[0] == reasons[1]
    for part in ("step 4: loss is nan, after 1 skipped in a row (training.max_skipped_steps 1)",
                 "sequences 12 to 15 of training.data at training.seed 1", "training.optimizer.learning_rate"):
        assert part in reasons[0]
    assert sorted(p.name for p in (tmp_path / "tiny" / "checkpoints").iterdir()) == ["step-00000002"]
    failed = summary(job, tmp_path, reasons[0])
    assert (failed["status"], failed["reason"], failed["steps"], failed["skipped_steps"]) == (
        "failed", reasons[0], 4, 2)


def test_weights_that_are_not_finite_are_never_saved(tmp_path):
    job = ranks.job(tmp_path, world=2)
    reasons = ranks.run(2, spoil_weights_after, job, 4)
    assert reasons[0] == reasons[1]
    assert reasons[0].startswith("step 4: weights or moments of the optimizer are not finite, so no checkpoint")
    assert sorted(p.name for p in (tmp_path / "tiny" / "checkpoints").iterdir()) == ["step-00000002"]


def test_checkpoints_of_another_training_are_not_taken_over(tmp_path):
    ranks.run(1, work, ranks.job(tmp_path))
    (reason,) = ranks.run(1, work, ranks.job(tmp_path, seed=2))
    assert "holds checkpoints of a training with other settings" in reason
    assert "use another name or remove it" in reason


def test_what_is_auto_is_chosen_and_the_reason_noted(tmp_path):
    job = ranks.job(tmp_path, micro_batch="auto", parallel={"sharding": "auto", "recompute": "auto"})
    assert ranks.run(1, work, job) == [None]
    noted = json.loads((tmp_path / "tiny" / "run.json").read_text())["choices"]
    assert "micro_batch 1: nothing is predicted for CPUs, so the cautious choice" in noted
    assert len(ranks.losses(tmp_path / "tiny")) == 6
    assert summary(job, tmp_path)["config_hash"] == TrainJob.model_validate(job).config_hash()


def test_a_checkpoint_only_at_the_end(tmp_path):
    ranks.run(1, work, ranks.job(tmp_path, checkpoint={"every_steps": 0}))
    assert [p.name for p in (tmp_path / "tiny" / "checkpoints").iterdir()] == ["step-00000006"]


@pytest.mark.parametrize(("changes", "local_world", "message"), [
    ({"sequence_length": 65}, 1, "training.sequence_length 65 is beyond the model's 64 positions"),
    ({"data": {"kind": "text", "path": "/no/such/text"}}, 1, "training.data.path /no/such/text does not exist"),
    ({}, 3, "has 3 ranks where the job wants 1 on each of 1 nodes"),
])
def test_what_cannot_run_fails_before_the_first_step(tmp_path, changes, local_world, message):
    (reason,) = ranks.run(1, work, ranks.job(tmp_path, **changes), local_world)
    assert message in reason
    assert not list(tmp_path.glob("tiny/metrics*"))


def test_a_rank_that_should_have_a_gpu_and_has_none_says_so(tmp_path):
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    job = ranks.job(tmp_path)
    job["placement"]["device"] = "cuda"
    (reason,) = ranks.run(1, work, job)
    assert "has no usable CUDA device, and the job wants one (placement.device cuda)" in reason
