"""`eagleray plan`: what a training needs, costs and reaches, without credentials."""

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest
from fake_aws import FakeAws, RefusedError
from rich.console import Console

from eagleray import catalog
from ops import cli
from ops.context import Context, read_context
from ops.errors import NothingToDoError
from ops.plan import make_plan
from ops.plan_command import Wanted, run
from settings import load_settings
from settings.prices import Price, Prices, read_prices
from training import topology
from training.hardware import hardware_of
from training.shape import known_shape

ROOT = Path(__file__).resolve().parents[2]


def planned(config="l4", overrides=None, compare=None, output: Literal["screen", "json"] = "screen", width=200,
            code=0):
    screen = io.StringIO()
    wanted = Wanted(Context(config, overrides), compare, "file", output)
    assert run(wanted, Console(file=screen, width=width), Console(file=io.StringIO())) == code
    return screen.getvalue()


def as_data(*arguments, **more):
    return json.loads(planned(*arguments, output="json", **more))


def test_a_newcomer_without_credentials_sees_what_it_needs_costs_and_reaches():
    shown = planned(width=100)
    for words in ("2 x g6.12xlarge", "96 of Running On-Demand G and VT instances, L-DB2E81BA", "$9.55", "of 21.1",
                  "131,072 tokens", "37,090 tokens/s", "200 steps", "sharding hybrid"):
        assert words in shown, words
    assert "\x1b" not in shown


@pytest.mark.parametrize("width", [80, 160])
def test_no_line_is_wider_than_the_screen(width):
    for text in (planned(width=width), planned(compare="l4,h100,g6e", width=width)):
        assert max(map(len, text.splitlines())) <= width


def test_the_readme_shows_what_the_command_shows():
    today = planned(overrides="training.tokens=1e9", compare="l4,h100,g6e", width=80)
    lines = [line.rstrip() for line in today.rstrip().splitlines()]
    assert "\n".join(lines) in (ROOT / "README.md").read_text(), f"put this into the README:\n{today}"


def test_its_speed_is_that_of_the_plan_the_job_will_choose():
    job = load_settings("h100").train_job("s3://b/runs")
    shape, hardware = known_shape(job.training.model), hardware_of(job.placement)
    assert shape
    assert hardware
    chosen = topology.choose(job.training, shape, hardware)
    plan = make_plan("h100", load_settings("h100"), read_prices())
    assert plan.prediction
    assert plan.prediction.training == chosen.training
    assert plan.prediction.tokens_per_second.value == pytest.approx(chosen.time.tokens_per_second)
    assert plan.prediction.memory.value == pytest.approx(chosen.memory.gib)


def test_each_figure_says_what_it_rests_on():
    def bases(value):
        if isinstance(value, dict):
            found = {value["basis"]} if "basis" in value else set()
            return found.union(*map(bases, value.values()))
        return set().union(*map(bases, value)) if isinstance(value, list) else set()

    assert bases(as_data()) >= {"published", "predicted"}
    assert bases(as_data()) <= {"measured", "published", "predicted"}


def test_configs_and_instance_families_stand_side_by_side():
    plans = as_data(compare="l4,h100,g6e")["plans"]
    assert [plan["machines"]["instance_type"] for plan in plans] == ["g6.12xlarge", "p5.48xlarge", "g6e.12xlarge"]
    shown = planned(compare="l4,h100,g6e")
    assert all(words in shown for words in ("l4", "h100", "g6e.12xlarge", "tokens/s", "10^9 tokens"))


def test_the_length_of_a_run_in_tokens_makes_plans_comparable():
    for config in ("l4", "h100"):
        found = make_plan(config, load_settings(config, "training.tokens=1e9"), read_prices()).prediction
        assert found
        assert found.steps * found.tokens_per_step == pytest.approx(1e9, rel=1e-3)
        assert found.dollars.value == pytest.approx(found.dollars_per_billion_tokens.value, rel=1e-3)
    assert "the runs differ in tokens" in planned("l4", compare="l4,h100")
    assert "the runs differ in tokens" not in planned("l4", "training.tokens=1e9", compare="l4,h100")


def test_what_does_not_fit_says_what_would_and_is_exit_code_1():
    shown = " ".join(planned(overrides="training.micro_batch=64", code=1).split())
    assert "training.micro_batch 64 does not fit" in shown
    assert "the largest that fits is" in shown


def test_a_comparison_in_which_something_fits_is_no_failure():
    fits = next(line for line in planned(overrides="training.micro_batch=64", compare="l4,h100").splitlines()
                if line.startswith("fits"))
    assert fits.split()[1:3] == ["no", "yes"]


@pytest.mark.parametrize(("written", "message"), [
    (["config=l5"], "config=l5: no such config"),
    (["set=gpu.instance_type=g6.xlarge"], "g6.xlarge has no EFA; use for example"),
    (["colour=red"], "-c colour=red: must be config=NAME or set=path=value"),
    (["config=l4", "config=h100"], "-c config= is given twice"),
])
def test_bad_input_is_one_clear_error(written, message, tmp_path):
    with pytest.raises(NothingToDoError, match=message):
        read_context(written, tmp_path).settings()


def test_what_the_command_line_leaves_out_is_what_cdk_would_take(tmp_path):
    (tmp_path / "cdk.json").write_text(json.dumps({"context": {"config": "h100", "set": "gpu.nodes=3"}}))
    assert read_context([], tmp_path) == Context("h100", "gpu.nodes=3")
    assert read_context(["set=gpu.nodes=4"], tmp_path) == Context("h100", "gpu.nodes=4")
    (tmp_path / "cdk.json").write_text("{")
    with pytest.raises(NothingToDoError, match=r"cdk\.json: not readable as JSON"):
        read_context([], tmp_path)


@pytest.mark.parametrize(("arguments", "code", "said"), [
    (["-c", "config=l4", "-c", "set=gpu.nodes=3", "--json"], 0, ""),
    (["-c", "set=training.micro_batch=500"], 1, ""),
    (["-c", "set=gpu.nodes=0"], 2, "set=gpu.nodes=0: gpu.nodes = 0: must be 1 or more"),
    (["--compare", ","], 2, "--compare: name configs or instance types"),
])
def test_the_exit_code_is_for_scripts(monkeypatch, capsys, arguments, code, said):
    monkeypatch.setattr(sys, "argv", ["eagleray", "plan", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert (stop.value.code or 0) == code
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("command", [["plan"], ["catalog", "add"], ["catalog", "prices"]])
def test_help_has_an_example_and_the_exit_codes(monkeypatch, capsys, command):
    monkeypatch.setattr(sys, "argv", ["eagleray", *command, "--help"])
    with pytest.raises(SystemExit):
        cli.main()
    shown = capsys.readouterr().out
    assert f"Example: eagleray {' '.join(command)}" in shown
    assert "Exit codes" in shown


def test_without_an_answer_the_live_prices_are_those_of_the_file(monkeypatch):
    class NoAnswer(FakeAws):
        def __init__(self):
            super().__init__({"api.pricing.GetProducts": RefusedError("ExpiredTokenException")})

    monkeypatch.setattr("ops.aws.Aws", NoAnswer)
    shown, errors = io.StringIO(), io.StringIO()
    wanted = Wanted(Context(), None, "live", "screen")
    assert run(wanted, Console(file=shown, width=200), Console(file=errors, width=200)) == 0
    assert "no live prices: the AWS credentials have expired" in errors.getvalue()
    assert "$9.55" in shown.getvalue()


def test_a_live_price_wins_and_says_when_it_was_asked():
    live = {("us-east-2", "g6.12xlarge"): Price(5.0, "AWS Price List API", "2026-12-02")}
    plan = make_plan("l4", load_settings("l4"), Prices(read_prices().data, live))
    assert plan.costs[0].each.value == 5.0
    assert plan.costs[0].each.note == "2026-12-02: AWS Price List API"
    assert plan.dollars_per_hour.value == pytest.approx(10.3466)


def test_a_run_that_the_deadline_will_cut_off_is_warned_of():
    settings = load_settings("l4", "training.tokens=1e10")
    (warning,) = make_plan("l4", settings, read_prices()).warnings
    assert "ray.run_hours" in warning
    enough = int(warning.split("ray.run_hours=")[1].split(",")[0])
    assert not make_plan("l4", load_settings("l4", f"training.tokens=1e10,ray.run_hours={enough}"),
                         read_prices()).warnings


def test_a_ceiling_of_dollars_is_shown_and_one_that_cuts_the_run_off_is_warned_of():
    assert "ray.max_dollars 20 at $9.55 an hour" in planned(overrides="ray.max_dollars=20")
    assert as_data(overrides="ray.max_dollars=20")["ends"]["dollars"] == 20
    (warning,) = as_data(overrides="ray.max_dollars=20,training.tokens=1e9")["warnings"]
    enough = warning.split("use ray.max_dollars=")[1].split(",")[0]
    assert as_data(overrides=f"ray.max_dollars={enough},training.tokens=1e9")["warnings"] == []
    plan = make_plan("l4", load_settings("reserved", "ray.max_dollars=20"), read_prices())
    assert "ends the job, and not the reservation" in plan.warnings[-1]


def test_a_model_of_unknown_size_gets_its_price_and_no_made_up_speed():
    data = as_data(overrides="training.model.name=someone/else")
    assert (data["fits"], data["training"]) == (None, None)
    assert data["dollars_per_hour"]["value"] == pytest.approx(9.55, abs=0.01)
    assert "training.model.name someone/else" in planned(overrides="training.model.name=someone/else")


@pytest.mark.parametrize(("capacity", "code", "vcpu", "known"), [
    ("kind=spot", "L-3819A6DF", 96, False),
    ("kind=reserve,gpu.capacity.hours=5", "L-DB2E81BA", 96, True),
    ("kind=reservation,gpu.capacity.id=cr-0123456789abcdef0", "L-DB2E81BA", 96, True),
    ("kind=capacity-block,gpu.instance_type=p5.48xlarge,gpu.capacity.id=cr-0123456789abcdef0", None, None, False),
])
def test_quota_and_price_are_those_of_the_kind_of_capacity(capacity, code, vcpu, known):
    plan = make_plan("l4", load_settings("l4", f"gpu.capacity.{capacity}"), read_prices())
    assert (plan.gpu_quota and plan.gpu_quota.code, plan.gpu_quota and plan.gpu_quota.vcpu) == (code, vcpu)
    assert (plan.dollars_per_hour.value is not None) == known
    if not known:
        assert "spot prices change" in plan.dollars_per_hour.note or "paid as a whole" in plan.dollars_per_hour.note


def test_a_reservation_says_what_it_bills_at_most():
    plan = make_plan("l4", load_settings("l4", "gpu.capacity.kind=reserve,gpu.capacity.hours=5"), read_prices())
    assert "up to 6 hours (gpu.capacity.hours), $55.22 for its nodes alone" in plan.warnings[0]


def test_every_type_has_a_plan():
    for name in catalog.efa_gpu_types():
        plan = make_plan(name, load_settings("l4", f"gpu.instance_type={name}"), read_prices())
        assert plan.fits is not None, plan.problem
        assert plan.gpu_quota
        assert plan.gpu_quota.code
        known = plan.dollars_per_hour.value is not None
        assert known or plan.costs[0].each.note


def test_an_unknown_thing_to_compare_is_named():
    with pytest.raises(NothingToDoError, match="g9"):
        planned(compare="l4,g9")


def test_a_price_that_nobody_knows_is_unknown_and_never_a_guess():
    known = json.loads((ROOT / "settings" / "prices.json").read_text())
    assert "ap-south-1" not in known["instances"]
    here = "region=ap-south-1,network.zone=ap-south-1a,network.second_zone=ap-south-1b"
    data = as_data(overrides=here)
    assert data["costs"][0]["each"]["value"] is None
    assert data["training"]["dollars"]["value"] is None
    assert "no known price in ap-south-1" in data["costs"][0]["each"]["note"]
    assert "unknown" in planned(overrides=here)


def test_it_is_quick_because_it_imports_nothing_heavy():
    code = """if True:
        import io, sys
        from rich.console import Console
        from ops.context import Context
        from ops.plan_command import Wanted, run
        nowhere = Console(file=io.StringIO())
        run(Wanted(Context(), None, 'file', 'screen'), nowhere, nowhere)
        heavy = {'torch', 'aws_cdk', 'jsii', 'transformers', 'ray', 'boto3', 'matplotlib'}
        print(sorted(heavy & set(sys.modules)))
    """
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr
