"""The EFA interfaces against what EC2 says of each instance type's network cards."""

import gzip
import json
from functools import cache
from pathlib import Path

import moto
import pytest

from eagleray.catalog import efa_gpu_types, instance_type
from eagleray.launch_template import efa_interfaces


def layout(name: str) -> list[tuple[int, int, str]]:
    """(card, device, kind) of each interface that the launch template gets."""
    return [(int(i.network_card_index or 0), int(i.device_index or 0), str(i.interface_type))
            for i in efa_interfaces(instance_type(name), ["sg-cluster", "sg-efa"])]


@cache
def ec2_describes() -> dict:
    """EC2's DescribeInstanceTypes, recorded by moto."""
    file = Path(moto.__file__).parent / "ec2" / "resources" / "instance_types.json.gz"
    return json.loads(gzip.decompress(file.read_bytes()))


@pytest.mark.parametrize("name", efa_gpu_types())
def test_every_card_with_efa_gets_one_interface_that_the_card_can_have(name):
    cards = {card["NetworkCardIndex"]: card for card in ec2_describes()[name]["NetworkInfo"]["NetworkCards"]}
    for card, device, kind in layout(name):
        assert kind in cards[card]["InterfaceTypes"]
        assert device < cards[card]["MaximumNetworkInterfaces"]
    with_efa = [card for card, _, kind in layout(name) if kind in ("efa", "efa-only")]
    assert with_efa == sorted(n for n, card in cards.items() if "efa" in card["InterfaceTypes"])


@pytest.mark.parametrize("name", efa_gpu_types())
def test_the_first_interface_carries_ip_traffic_and_only_it(name):
    (card, device, kind), *others = layout(name)
    assert (card, device) == (0, 0)
    assert kind in ("efa", "interface")
    assert {kind for _, _, kind in others} <= {"efa-only"}


def test_p6_b300_has_a_card_for_ip_traffic_and_sixteen_for_efa():
    assert layout("p6-b300.48xlarge") == [(0, 0, "interface")] + [(c, 1, "efa-only") for c in range(1, 17)]


def test_every_interface_is_in_all_the_groups():
    for interface in efa_interfaces(instance_type("p4d.24xlarge"), ["sg-cluster", "sg-efa"]):
        assert interface.groups == ["sg-cluster", "sg-efa"]
