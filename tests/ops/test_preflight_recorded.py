"""Checks of preflight against EC2's own answers, where moto has them recorded: zones, offerings, instance types."""

import boto3
import pytest
from moto import mock_aws

from ops.aws import Aws
from ops.preflight.capacity_checks import efa, offerings
from ops.preflight.finding import Region
from ops.preflight.zones import named, zone_findings, zones_of
from settings import load_settings


@pytest.fixture
def virginia(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    with mock_aws():
        account = boto3.client("sts", region_name="us-east-1").get_caller_identity()["Account"]
        yield Region(Aws(), "us-east-1", account)


def test_zones_have_names_and_ids_and_the_one_without_eks_is_told(virginia):
    zones = zones_of(virginia)
    assert [z.name for z in zones] == [f"us-east-1{letter}" for letter in "abcdef"]
    without = next(z for z in zones if z.id == "use1-az3")
    assert [f.zone for f in zone_findings(zones)] == [without.name]
    assert named(["use1-az3"], {"us-east-1": zones}) == {"us-east-1": [without.name]}


def test_a_zone_without_the_gpu_type_is_told_with_those_that_have_it(virginia):
    settings = load_settings()
    assert [f.status for f in offerings(virginia, settings, "us-east-1a")] == ["ok", "ok"]
    gpu = next(f for f in offerings(virginia, settings, "us-east-1e") if f.status == "failed")
    assert gpu.text == "us-east-1e has no g6.12xlarge"
    assert gpu.fix == "deploy to us-east-1a or us-east-1b or us-east-1c or us-east-1d or us-east-1f"


@pytest.mark.parametrize("kind", ["g6.12xlarge", "p5.48xlarge", "g6e.24xlarge"])
def test_the_types_are_as_the_templates_were_made_for(virginia, kind):
    found, = efa(virginia, load_settings("l4", f"gpu.instance_type={kind}"))
    assert found.status == "ok", found.text
