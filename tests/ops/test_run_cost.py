"""What a run has cost: in its report, beside another run, and so far; never for a rehearsal."""

import io
import json
import subprocess
import sys
import time

import pytest
from rich.console import Console

from ops.context import Context
from ops.report import write_report
from ops.report_pair import write_pair
from ops.run_cost import run_cost
from ops.status.command import Wanted, run
from settings import load_settings
from settings.cost import rented
from settings.prices import read_prices
from tests.ops.fake_aws import FakeAws, RefusedError
from tests.ops.fake_kubernetes import SUCCEEDED
from tests.ops.standing import Standing, ago
from tests.ops.test_run_report import ROWS, SUMMARY, make_run, parsed

RENTED = rented(load_settings("l4")).model_dump()
BILLED = {"rented": RENTED, "hours": 2.0, "node_hours": 3.5}


def price(name):
    prices = read_prices()
    found = prices.instance("us-east-2", name) if "." in name else prices.service("us-east-2", name)
    assert found.value
    return found.value


REST = price("m7i.xlarge") + price("eks_standard") + price("nat_gateway")
DOLLARS = 3.5 * price("g6.12xlarge") + 2 * REST


def page(folder, **changes):
    target = make_run(folder, summary={**SUMMARY, **changes})
    write_report(target, target / "report.html")
    text = (target / "report.html").read_text()
    parsed(text)
    return text


def test_the_report_says_dollars_and_the_date_and_source_of_each_price(tmp_path):
    text = page(tmp_path / "run", **BILLED)
    assert f"<dt>Dollars</dt><dd>{DOLLARS:,.2f}</dd>" in text
    a_million = (2 * price("g6.12xlarge") + REST) / 3600 / SUMMARY["tokens_per_second"] * 1e6
    assert f"<dt>Dollars per million tokens</dt><dd>{a_million:.4f}</dd>" in text
    plain = text.replace("<wbr>", "")
    assert f"Predicted ${DOLLARS:,.2f}" in plain
    assert "2026-02-24: https://aws.amazon.com/vpc/pricing" in plain
    assert "disks, data transfer" in plain


@pytest.mark.parametrize(("change", "why"), [
    ({"capacity": "spot"}, "spot prices change by the hour"),
    ({"capacity": "capacity-block"}, "paid as a whole when it is bought"),
    ({"region": "ap-south-1"}, "no known price in ap-south-1"),
])
def test_a_price_that_is_not_known_is_said_and_never_guessed(tmp_path, change, why):
    text = page(tmp_path / "run", **{**BILLED, "rented": {**RENTED, **change}})
    assert "<dt>Dollars</dt><dd>unknown</dd>" in text
    assert why in text


def test_two_runs_show_their_dollars_side_by_side(tmp_path):
    first = make_run(tmp_path / "first", summary={**SUMMARY, **BILLED, "name": "first"})
    second = make_run(tmp_path / "second", summary={**SUMMARY, **BILLED, "name": "second", "node_hours": 7.0,
                                                    "hours": 4.0, "tokens_per_second": 2500})
    write_pair(first, second, tmp_path / "pair.html")
    text = (tmp_path / "pair.html").read_text().replace("<wbr>", "")
    assert f"Dollars</th><td>{DOLLARS:,.2f}</td><td>{2 * DOLLARS:,.2f}</td>" in text
    assert "Cost of first" in text
    assert "Cost of second" in text


@pytest.mark.parametrize("told", [{}, {"rented": None, "hours": 1.0, "node_hours": 1.0}, {"rented": {}},
                                  {**BILLED, "hours": "x"}, {**BILLED, "rented": [5]}])
def test_what_was_rented_for_nothing_costs_nothing_and_what_is_damaged_is_no_cost(told):
    assert run_cost(told, read_prices()) is None


def test_a_run_that_was_ended_from_outside_has_a_report_with_its_dollars_so_far(tmp_path):
    folder = make_run(tmp_path / "run", rows=[{**row, "time": 3600.0 + row["step"]} for row in ROWS])
    (folder / "summary.json").unlink()
    (folder / "run.json").write_text(json.dumps({
        "starts": 2, "rented": RENTED, "held": [{"job": "a", "nodes": 2, "began": 30.0}], "startup": [],
        "ranks": [{"rank": n} for n in range(8)], "versions": {"torch": "2.13.0"}, "config_hash": "0123456789ab"}))
    write_report(folder, folder / "report.html")
    text = (folder / "report.html").read_text()
    parsed(text)
    assert "unfinished" in text
    assert "ended from outside" in text
    assert f"<dt>Dollars</dt><dd>{2 * price('g6.12xlarge') + REST:,.2f}</dd>" in text
    assert "<dt>Restarts</dt><dd>1</dd>" in text
    assert "<dt>Last loss</dt><dd>5.000</dd>" in text


@pytest.mark.parametrize("run_json", [{}, {"rented": RENTED, "held": 5, "starts": "x", "ranks": 3},
                                      {"rented": RENTED, "held": [{"nodes": 2}]}, {"rented": RENTED, "held": [7]}])
def test_a_damaged_run_json_is_a_report_without_dollars(tmp_path, run_json):
    folder = make_run(tmp_path / "run")
    (folder / "summary.json").unlink()
    (folder / "run.json").write_text(json.dumps(run_json))
    write_report(folder, folder / "report.html")
    assert "Dollars" not in (folder / "report.html").read_text()


def test_a_rehearsal_shows_no_cost(tmp_path):
    folder = make_run(tmp_path / "run", summary={**SUMMARY, **BILLED}, rehearsal={"job": "x"})
    write_report(folder, folder / "report.html")
    assert "Dollars" not in (folder / "report.html").read_text()


def test_the_run_on_the_screen_says_its_dollars_so_far_and_keeps_them_at_its_end(server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    app = Standing(tmp_path, server)

    def looked():
        output = io.StringIO()
        aws = FakeAws({"cloudformation.DescribeStacks": RefusedError("ExpiredToken")})
        run(Wanted(Context(), output="json"), Console(file=output), lambda: aws)
        return json.loads(output.getvalue())["run"]

    held = [{"job": "a", "nodes": 2, "began": time.time() - 3600}]
    app.leave(run={"starts": 1, "rented": RENTED, "held": held})
    assert looked()["dollars"]["value"] == pytest.approx(2 * price("g6.12xlarge") + REST, rel=0.01)
    assert looked()["dollars_per_million_tokens"]["value"] == pytest.approx(0.0715, rel=0.01)
    # Ended at its deadline, it left no summary: the dollars stop where its job did.
    app.set_job(endTime=ago(minutes=30), **SUCCEEDED)
    assert looked()["dollars"]["value"] == pytest.approx((2 * price("g6.12xlarge") + REST) / 2, rel=0.01)
    app.leave(run={"starts": 1, "rented": RENTED, "held": held}, summary={**SUMMARY, **BILLED})
    assert looked()["dollars"]["value"] == pytest.approx(DOLLARS, rel=0.001)


def test_reports_and_status_need_not_wait_for_torch():
    code = ("import sys, ops.report_pair, ops.status.command; "
            "print([m for m in ('torch', 'pyarrow', 'ray', 'transformers', 'aws_cdk') if m in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr
