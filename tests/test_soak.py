"""The soak: what it plans, how it judges, and a short one done for real."""

import pytest

from benchmarks import soak, soak_report
from benchmarks.local_job import Storage
from benchmarks.soak_faults import KINDS, Stage
from benchmarks.soak_report import Survived
from ops.corpus import write_corpus

CALM = [(1, 5.5), (2, 5.25), (3, 5.0)]
FACTS = {
    "seed": 1, "minutes": 5.0, "steps": 200, "planned": 5, "step_seconds": 0.1, "restarts_without_a_fault": 0,
    "machine": {"cpus": 2, "system": "Linux", "load_before": 1.0, "load_after": 2.0, "versions": {"ray": "2.58.0"}},
}


@pytest.mark.parametrize(("soaked", "said"), [
    (CALM, None),
    ([(1, 5.5), (2, 5.25), (3, 5.000000001)], "step 3: loss 5.000000001 where the undisturbed run has 5.0 (1 of 3"),
    ([(1, 5.5), (2, 5.2), (3, 4.9)], "step 2: loss 5.2 where the undisturbed run has 5.25 (2 of 3 steps differ)"),
    ([(1, 5.5), (3, 5.0)], "the record of step 2 is missing: that of step 3 is in its place"),
    ([(1, 5.5), (1, 5.5), (2, 5.25), (3, 5.0)], "the record of step 2 is missing: that of step 1 is in its place"),
    (CALM[:2], "2 steps where the undisturbed run has 3"),
    ([], "0 steps where the undisturbed run has 3"),
])
def test_losses_are_compared_step_by_step_to_the_last_bit(soaked, said):
    found = soak_report.difference(CALM, soaked)
    assert (found or "").startswith(said or "")
    assert (found is None) == (said is None)


def test_the_plan_follows_from_the_seed_and_has_every_kind():
    faults = soak.plan(7, 20, 2000, 0.1)
    assert faults == soak.plan(7, 20, 2000, 0.1)
    assert faults != soak.plan(8, 20, 2000, 0.1)
    assert {fault.kind for fault in faults[:len(KINDS)]} == set(KINDS)
    steps = [fault.step for fault in faults]
    assert steps == sorted(steps)
    assert steps[0] >= 2 * soak.EVERY_STEPS
    assert steps[-1] < 1700  # the last half a minute is calm


def test_the_report_has_medians_of_each_kind_and_says_what_failed():
    survived = [Survived("rank killed", 50, 10, 40.0), Survived("rank killed", 90, 4, 44.0),
                Survived("rank killed", 150, 6, 90.0), Survived("storage fails", 170, 0, 0.2)]
    facts = {**FACTS, "restarts_without_a_fault": 1}
    good = soak_report.report(survived, None, **facts)
    assert good["by_kind"]["rank killed"] == {"times": 3, "seconds_lost": 44.0, "most_seconds_lost": 90.0,
                                              "steps_repeated": 6, "most_steps_repeated": 10}
    text = soak_report.markdown(good)
    assert "| rank killed | 3 | 44.0 | 90.0 | 6 | 10 |" in text
    assert "losses are those of the undisturbed run" in text
    assert "5 faults planned, 1 restarts that no fault explains" in text
    bad = soak_report.report(survived, "step 3: loss 1 where the undisturbed run has 2", **facts)
    assert bad["status"] == "failed"
    assert "**FAILED**: step 3: loss 1" in soak_report.markdown(bad)
    assert "losses are those" not in soak_report.markdown(bad)
    assert soak_report.report([], None, **facts)["reason"] == "no fault came, so nothing is proven"


@pytest.mark.parametrize(("reason", "code"), [(None, None), ("step 3 differs", "soak failed: step 3 differs")])
def test_a_soak_whose_losses_differ_ends_with_exit_code_1(tmp_path, monkeypatch, capsys, reason, code):
    monkeypatch.setattr(soak, "soak_for", lambda *_: soak_report.report(
        [Survived("rank killed", 50, 10, 40.0)], reason, **FACTS))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # what failed stays there, to be looked at
    monkeypatch.setattr("sys.argv", ["soak", "--out", str(tmp_path / "out")])
    if code is None:
        soak.main()
    else:
        with pytest.raises(SystemExit, match=code):
            soak.main()
    assert "# Soak: 5.0 minutes" in (tmp_path / "out" / "report.md").read_text()
    assert "# Soak: 5.0 minutes" in capsys.readouterr().out
    assert len(list(tmp_path.glob("eagleray-soak-*"))) == (code is not None)


@pytest.mark.parametrize("minutes", ["0", "-3", "nan", "1e9"])
def test_a_soak_too_short_for_a_fault_or_without_end_is_refused(monkeypatch, capsys, minutes):
    monkeypatch.setattr("sys.argv", ["soak", f"--minutes={minutes}"])
    with pytest.raises(SystemExit, match="2"):
        soak.main()
    assert "error: --minutes" in capsys.readouterr().err


def test_storage_that_fails_fails_as_a_whole_and_comes_back(tmp_path):
    storage = Storage(tmp_path / "storage")
    (storage.path / "run").mkdir()
    (storage.path / "run" / "file").write_text("here")
    storage.fail()
    with pytest.raises(NotADirectoryError):
        (storage.path / "run" / "file").read_text()
    with pytest.raises(NotADirectoryError):
        (storage.path / "new").mkdir()
    storage.mend()
    assert (storage.path / "run" / "file").read_text() == "here"


@pytest.mark.long
def test_a_short_soak_ends_with_the_losses_of_the_undisturbed_run(tmp_path):
    data, steps = write_corpus(tmp_path / "corpus", soak.VOCABULARY), 200
    faults = [soak.Fault("rank killed", 50), soak.Fault("storage fails", 70), soak.Fault("checkpoint damaged", 90)]
    with Stage(tmp_path / "stage", 1) as stage:
        soak.train_undisturbed(stage, soak.job("undisturbed", *data, steps, 0))
        undisturbed = stage.training.losses()
        survived, failure = soak.soak(stage, soak.job("soaked", *data, steps, 3), faults, undisturbed, 0.1, 600)
        assert stage.starts() == 3
    assert failure is None
    assert [one.kind for one in survived] == ["rank killed", "storage fails", "checkpoint damaged"]
    assert survived[2].steps_repeated >= soak.EVERY_STEPS  # it went on from the one before
