"""Steps are read one behind the device, and what happens after each does not depend on that."""

import pytest
import torch

from training.config import TrainConfig
from training.errors import AgreedError
from training.metrics import StepMeter
from training.watch import StepWatch

CPU = torch.device("cpu")
NAN, INF = float("nan"), float("inf")


class Lines:
    """In place of the log: the records that were added."""

    def __init__(self):
        self.records, self.flushed = [], False

    def add(self, record):
        self.records.append(record)

    def flush(self):
        self.flushed = True

    @property
    def steps(self):
        return [record["step"] for record in self.records]


def watched(**config):
    lines = Lines()
    config = TrainConfig(**{"micro_batch": 2, "accumulation": 3, "steps": 50, **config})
    return StepWatch(config, 4, StepMeter(1000, 4, None, CPU), lines), lines  # pyright: ignore[reportArgumentType]


def launch(watch, step, loss=2.0, norm=1.0):
    watch.launched(step, torch.tensor(loss), torch.tensor(norm), 1e-3)


def test_a_step_is_read_when_the_next_is_launched_and_all_when_caught_up():
    watch, lines = watched()
    launch(watch, 1)
    assert lines.steps == []
    launch(watch, 2)
    assert lines.steps == [1]
    watch.catch_up()
    watch.catch_up()
    assert lines.steps == [1, 2]


@pytest.mark.parametrize(("allowed", "finite_between", "ends_at"), [(0, [], 1), (2, [], 3), (2, [3, 6], 9)])
def test_only_steps_in_a_row_count(allowed, finite_between, ends_at):
    watch, lines = watched(max_skipped_steps=allowed)

    def train():
        for step in range(1, 12):
            launch(watch, step, norm=1.0 if step in finite_between else INF)
            watch.catch_up()

    with pytest.raises(AgreedError, match=f"^step {ends_at}: gradient norm is inf"):
        train()
    assert lines.steps == list(range(1, ends_at + 1))
    assert lines.flushed  # on S3 the last lines would be lost, and they say where the data is


def test_the_end_names_what_was_not_finite_the_limit_and_the_data():
    watch, lines = watched(max_skipped_steps=1, seed=7)
    launch(watch, 10, loss=NAN, norm=NAN)
    launch(watch, 11, loss=INF)
    with pytest.raises(AgreedError) as error:
        launch(watch, 12)
    line = str(error.value)
    assert "\n" not in line
    for part in ("step 11: loss is inf, after 1 skipped in a row (training.max_skipped_steps 1)",
                 "sequences 240 to 263 of training.data at training.seed 7", "training.optimizer.learning_rate"):
        assert part in line
    assert [record["sequences"] for record in lines.records] == [[216, 239], [240, 263]]


def test_a_run_of_which_no_step_counted_has_failed():
    watch, _ = watched(max_skipped_steps=5, steps=2)
    launch(watch, 1, loss=NAN)
    launch(watch, 2, loss=NAN)
    with pytest.raises(AgreedError, match="step 2: loss is nan"):
        watch.catch_up()


def test_percentiles_look_at_the_steps_after_the_first(monkeypatch):
    now = iter([0.0, 60.0, 61.0, 62.0, 66.0])  # the first step compiles: a minute
    monkeypatch.setattr("training.metrics.time.perf_counter", lambda: next(now))
    watch, lines = watched()
    for step in (1, 2, 3, 4):
        launch(watch, step)
    watch.catch_up()
    assert [record["step_seconds"] for record in lines.records] == [60.0, 1.0, 1.0, 4.0]
    assert "step_seconds_p50" not in lines.records[0]
    last = lines.records[-1]
    assert (last["step_seconds_p50"], last["step_seconds_p99"]) == (1.0, pytest.approx(4.0, rel=0.02))
    assert last["tokens_per_second"] == 250.0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_a_gpu_a_step_is_read_while_the_next_one_runs():
    device = torch.device("cuda", 0)
    loss, norm, nan = (torch.tensor(value, device=device) for value in (2.5, 1.0, NAN))
    second = 2_000_000_000  # GPU cycles: about a second
    meter = StepMeter(1000, 1, None, device)
    torch.cuda._sleep(second // 4)
    one = meter.launched(1, loss, nan, 1e-3)
    torch.cuda._sleep(2 * second)
    two = meter.launched(2, loss, norm, 1e-3)
    first = meter.record(one)
    assert not two.ended.has_passed
    assert (first["loss"], first["skipped"], first["reason"]) == (2.5, True, "gradient norm is nan")
    assert meter.record(two)["step_seconds"] > 4 * first["step_seconds"]
    assert first["memory_reserved_gib"] >= first["memory_gib"] > 0
    assert first["alloc_retries"] == 0
