"""`eagleray plan`: what a training needs, costs and reaches, without credentials."""

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest
from rich.console import Console

from ops.context import Context, read_context
from ops.errors import NothingToDoError
from ops.plan import make_plan
from ops.plan_command import Wanted, run
from ops.prices import read_prices
from settings import load_settings
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


def test_an_unknown_thing_to_compare_is_named():
    with pytest.raises(NothingToDoError, match="g9"):
        planned(compare="l4,g9")


def test_a_price_that_nobody_knows_is_unknown_and_never_a_guess():
    known = json.loads((ROOT / "ops" / "prices.json").read_text())
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
