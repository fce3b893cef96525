"""Medians, spread, and what makes a comparison none."""

import json

import pytest

from ops.bench_job import EFA_AND_TCP, PlannedRun, Shape
from ops.bench_record import Record, opened
from ops.bench_report import write_bench_report
from ops.bench_result import compare, read_result
from ops.errors import CommandError, NothingToDoError
from tests.ops import bench_results

EFA, TCP = EFA_AND_TCP
SHAPE = Shape(steps=12, warm_up=2, repeats=2, minutes=30)


def result(folder, wire, number, speed, verdict=None):
    run = PlannedRun(wire, number, f"x-{wire.name}{number}")
    return read_result(bench_results.leave(folder / run.label, speed, verdict or wire.verdict), run, SHAPE.warm_up)


def test_the_spread_is_that_of_any_two_runs(tmp_path):
    found = compare(EFA_AND_TCP, [result(tmp_path, EFA, 1, 4000), result(tmp_path, TCP, 1, 2000),
                                  result(tmp_path, EFA, 2, 4400), result(tmp_path, TCP, 2, 1600)])
    assert found.ratio() == pytest.approx((4200 / 1800, 4000 / 2000, 4400 / 1600))
    assert found.problems == ()


@pytest.mark.parametrize(("wire", "verdict"), [(EFA, "unproven"), (EFA, "error"), (TCP, "efa"), (TCP, "unproven")])
def test_only_the_wanted_verdict_counts(tmp_path, wire, verdict):
    found = result(tmp_path, wire, 1, 4000, verdict)
    assert f"went over '{verdict}' where '{wire.verdict}' was wanted" in str(found.problem)


def test_a_summary_without_transport_proves_nothing(tmp_path):
    folder = bench_results.leave(tmp_path, 4000)
    (folder / "summary.json").write_text(json.dumps({"status": "succeeded"}))
    assert read_result(folder, PlannedRun(EFA, 1, "x"), 2).verdict == "unproven"


def test_a_run_that_ended_in_the_warm_up_has_no_speed(tmp_path):
    folder = bench_results.leave(tmp_path, 4000, steps=2)
    with pytest.raises(CommandError, match="no speed of a step after step 2"):
        read_result(folder, PlannedRun(EFA, 1, "x"), 2)


def test_the_page_escapes_and_says_what_it_is(tmp_path):
    nasty = "<script>alert('x')</script>"
    found = compare(EFA_AND_TCP, [result(tmp_path, EFA, 1, 4000, nasty), result(tmp_path, TCP, 1, 2000)])
    write_bench_report(tmp_path / "r.html", Record("rehearsal", nasty, nasty, SHAPE), found)
    page = (tmp_path / "r.html").read_text()
    assert "<script" not in page
    assert "says nothing about EFA" in page
    assert "published" in page
    assert page.count("<svg") == 2


def test_an_unfinished_comparison_goes_on_only_as_what_it_is(tmp_path):
    out = tmp_path / "out"
    with opened(out, Record("measured", "job-1", "here", SHAPE)) as first:
        first.begin(out)
    with opened(out, Record("measured", "job-1", "here", SHAPE)) as again:
        assert again.id == first.id
    with pytest.raises(NothingToDoError, match=r"unfinished comparison of job-1 on here.*12 steps"), \
            opened(out, Record("measured", "job-2", "here", SHAPE)):
        pass


def test_a_foreign_folder_is_not_touched(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(NothingToDoError, match="something else"), \
            opened(tmp_path, Record("rehearsal", "job", "here", SHAPE)):
        pass


def test_a_rehearsal_takes_the_place_of_an_earlier_one(tmp_path):
    out = tmp_path / "out"
    with opened(out, Record("rehearsal", "job", "here", SHAPE)) as record:
        record.begin(out)
    (out / "runs" / "efa-9").mkdir(parents=True)
    with opened(out, Record("rehearsal", "job", "here", SHAPE)) as record:
        record.begin(out)
    assert not (out / "runs").exists()
