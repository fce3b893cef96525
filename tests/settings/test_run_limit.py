"""A ceiling of dollars becomes the second at which a job is ended, or is refused with what would work."""

import re

import pytest

from settings import SettingsError, load_settings
from settings.cost import dollars_an_hour, hourly_costs, rented
from settings.prices import read_prices


def an_hour(settings):
    value = dollars_an_hour(hourly_costs(rented(settings), settings.gpu.nodes, read_prices())).value
    assert value is not None
    return value


def refusal(overrides, config="l4"):
    with pytest.raises(SettingsError) as error:
        load_settings(config, overrides)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_without_a_ceiling_the_hours_decide():
    limit = load_settings("l4", "ray.run_hours=3").run_limit
    assert (limit.seconds, limit.why, limit.dollars) == (3 * 3600, "ray.run_hours 3", None)


@pytest.mark.parametrize("overrides", ["", ",gpu.nodes=8", ",gpu.idle_minutes=90", ",system.nodes=3",
                                       ",gpu.capacity.kind=spot"])
def test_all_that_bills_until_the_last_node_is_gone_stays_below_the_ceiling(overrides):
    settings = load_settings("l4", f"ray.max_dollars=100{overrides}")
    on_demand = load_settings("l4", f"gpu.nodes={settings.gpu.nodes},system.nodes={settings.system.nodes}")
    limit = settings.run_limit
    billed = limit.seconds / 3600 + settings.gpu.idle_minutes / 60 + 2 / 60  # 2: the Cluster Autoscaler's own wait
    assert 80 < an_hour(on_demand) * billed <= 100
    assert "ray.max_dollars 100" in limit.text
    assert "at the latest" in limit.text


def test_hours_that_end_before_the_dollars_stay_the_limit():
    assert load_settings("l4", "ray.max_dollars=5000,ray.run_hours=3").run_limit.seconds == 3 * 3600


@pytest.mark.parametrize("more", ["", ",ray.start_minutes=5", ",gpu.idle_minutes=600", ",gpu.nodes=20"])
def test_a_ceiling_that_does_not_pay_for_the_start_is_refused_with_the_smallest_that_does(more):
    line = refusal(f"ray.max_dollars=0.5{more}")
    assert "ray.max_dollars 0.5 does not pay for the start" in line
    smallest = re.search(r"use (\d+\.\d\d) or more", line)
    assert smallest
    cents = round(float(smallest[1]) * 100)
    settings = load_settings("l4", f"ray.max_dollars={cents / 100}{more}")
    assert settings.run_limit.seconds > settings.ray.start_minutes * 60
    assert "does not pay" in refusal(f"ray.max_dollars={(cents - 1) / 100}{more}")


def test_a_ceiling_that_nobody_can_hold_is_refused():
    here = "region=ap-south-1,network.zone=ap-south-1a,network.second_zone=ap-south-1b"
    line = refusal(f"{here},ray.max_dollars=100")
    for part in ("ray.max_dollars", "no price of g6.12xlarge", "eagleray catalog prices ap-south-1", "run_hours"):
        assert part in line
    assert "paid as a whole when it is bought" in refusal("ray.max_dollars=100", "capacity-block")
    assert "use ray.run_hours" in refusal("ray.max_dollars=100", "capacity-block")


@pytest.mark.parametrize("value", ["0", "-3", "abc", ".inf", "[5]"])
def test_what_is_no_sum_of_dollars_is_named(value):
    assert "ray.max_dollars" in refusal(f"ray.max_dollars={value}")
