"""The catalog against what EC2 says: moto's record of DescribeInstanceTypes is AWS's own data."""

import copy
import json
import shutil

import boto3
import pytest
from fake_aws import FakeAws, RefusedError
from moto import mock_aws
from moto.ec2.models.instance_types import INSTANCE_TYPES

from eagleray import catalog
from ops.catalog_command import add_type, update_prices
from ops.catalog_entry import CATALOG_FILE, as_text, entry_of, network_mbps
from ops.errors import CommandError, NothingToDoError
from settings.prices import PRICE_FILE
from settings.prices import as_text as price_text

TYPES = catalog.instance_types()
IN_MOTO = sorted(name for name in TYPES if name in INSTANCE_TYPES)


def test_moto_has_every_type_of_the_catalog():
    assert set(TYPES) - set(IN_MOTO) == set(), "moto lacks these: nothing is known of them"


@pytest.mark.parametrize("name", IN_MOTO)
def test_a_type_is_as_ec2_describes_it(name):
    ours, theirs = TYPES[name], INSTANCE_TYPES[name]
    gpus = theirs.get("GpuInfo", {}).get("Gpus", [])
    network = theirs["NetworkInfo"]
    assert ours.vcpu == theirs["VCpuInfo"]["DefaultVCpus"]
    assert ours.mem_mib == theirs["MemoryInfo"]["SizeInMiB"]
    assert ours.gpus == sum(gpu["Count"] for gpu in gpus)
    assert ours.efa == (network["EfaInfo"]["MaximumEfaInterfaces"] if network.get("EfaSupported") else 0)
    assert ours.net_mbps == network_mbps(network)
    assert ours.alloc_cpu_m < 1000 * ours.vcpu
    assert ours.alloc_mem_mib < ours.mem_mib
    if gpus:
        assert ours.gpu == gpus[0]["Name"].lower().replace(" ", "-")
        assert ours.gpu_mem_mib == gpus[0]["MemoryInfo"]["SizeInMiB"]


def test_every_efa_gpu_type_that_ec2_describes_is_in_the_catalog():
    there = {name for name, info in INSTANCE_TYPES.items()
             if info["NetworkInfo"].get("EfaSupported")
             and "x86_64" in info["ProcessorInfo"]["SupportedArchitectures"]
             and any(gpu["Manufacturer"] == "NVIDIA" and gpu["Count"] >= 1
                     for gpu in info.get("GpuInfo", {}).get("Gpus", []))}
    assert there <= set(TYPES)


@pytest.mark.parametrize("name", IN_MOTO)
def test_a_row_made_from_ec2s_answer_is_the_row_that_stands(name):
    data = json.loads(CATALOG_FILE.read_text())
    stands = next(row for row in data["rows"] if row[0] == name)
    made = entry_of(INSTANCE_TYPES[name])
    differ = {column for column, ours, theirs in zip(data["columns"], stands, made.row, strict=True)
              if ours != theirs}
    assert differ <= {"gdr"}, "EC2 does not tell this one"
    assert made.capacity_block == (name in data["capacity_block"])
    assert made.first_efa_card == data["first_efa_card"].get(name, 0)


@pytest.mark.parametrize(("performance", "mbps"), [
    ("40 Gigabit", 40_000), ("4x 100 Gigabit", 400_000), ("12.5 Gigabit", 12_500), ("Up to 25 Gigabit", 5_000)])
def test_the_network_of_a_node_is_what_it_holds_for_hours(performance, mbps):
    assert network_mbps({"NetworkPerformance": performance,
                         "NetworkCards": [{"BaselineBandwidthInGbps": 5.0, "PeakBandwidthInGbps": 25.0}]}) == mbps


def test_the_data_files_are_as_the_commands_write_them():
    """So that a new type or price changes its own line and no other."""
    assert as_text(json.loads(CATALOG_FILE.read_text())) == CATALOG_FILE.read_text()
    assert price_text(json.loads(PRICE_FILE.read_text())) == PRICE_FILE.read_text()


@pytest.fixture
def without_g6(tmp_path):
    """A catalog that lacks g6.12xlarge."""
    data = json.loads(CATALOG_FILE.read_text())
    file = tmp_path / "instances.json"
    file.write_text(as_text({**data, "rows": [row for row in data["rows"] if row[0] != "g6.12xlarge"]}))
    return file


def ec2(answer):
    return FakeAws({"ec2.DescribeInstanceTypes": answer}).client("ec2", "us-east-2")


@mock_aws
def test_a_type_is_added_from_the_answer_of_an_emulated_ec2(without_g6):
    client = boto3.client("ec2", "us-east-2", aws_access_key_id="AKIAFAKE", aws_secret_access_key="fake")
    add_type("g6.12xlarge", "us-east-2", client, without_g6)
    written, stands = (next(row for row in json.loads(file.read_text())["rows"] if row[0] == "g6.12xlarge")
                       for file in (without_g6, CATALOG_FILE))
    assert written == stands
    with pytest.raises(NothingToDoError, match=r"EC2 in us-east-2 has no type g9\.large"):
        add_type("g9.large", "us-east-2", client, without_g6)


def a_type_of_next_year():
    """Hand-written after p6-b300's real description: a new family, a new GPU, EFA from the second card on."""
    info = copy.deepcopy(INSTANCE_TYPES["p6-b300.48xlarge"])
    info["InstanceType"] = "p7-r100.48xlarge"
    info["GpuInfo"]["Gpus"][0].update(Name="R100", MemoryInfo={"SizeInMiB": 294912})
    info["NetworkInfo"]["NetworkPerformance"] = "12800 Gigabit"
    return info


def test_a_new_family_with_a_new_gpu_is_written_whole_and_what_is_missing_is_said(tmp_path):
    file = tmp_path / "instances.json"
    shutil.copy(CATALOG_FILE, file)
    told = add_type("p7-r100.48xlarge", "us-west-2", ec2({"InstanceTypes": [a_type_of_next_year()]}), file)
    data = json.loads(file.read_text())
    assert data["rows"][-1][:9] == ["p7-r100.48xlarge", "r100", 8, 294912, 192, 4194304, 12_800_000, 16, False]
    assert data["rows"][-1][-1] == "L-417A185B"
    assert data["first_efa_card"]["p7-r100.48xlarge"] == 1
    assert "p7-r100.48xlarge" in data["capacity_block"]
    assert "training/gpus.json has no r100" in told[-1]


def test_a_new_type_is_written_with_its_source_and_date(without_g6):
    told = add_type("g6.12xlarge", "us-east-2", ec2({"InstanceTypes": [INSTANCE_TYPES["g6.12xlarge"]]}), without_g6)
    data = json.loads(without_g6.read_text())
    names = [row[0] for row in data["rows"]]
    assert [name for name in names if name.startswith("g6.")][-1] == "g6.12xlarge"
    assert names[names.index("g6.12xlarge") - 1].startswith("g6."), "beside its family"
    assert data["added"]["g6.12xlarge"]["source"] == "EC2 DescribeInstanceTypes, us-east-2"
    assert "gpu l4" in told[0]
    assert "estimates" in told[1]


OF_AMD = {**INSTANCE_TYPES["g6.12xlarge"], "GpuInfo": {"Gpus": [
    {"Name": "Radeon Pro V520", "Manufacturer": "AMD", "Count": 4, "MemoryInfo": {"SizeInMiB": 8192}}]}}


@pytest.mark.parametrize(("described", "message"), [
    (INSTANCE_TYPES["g5g.16xlarge"], "not x86-64"), (INSTANCE_TYPES["trn1.32xlarge"], "AWS's own accelerators"),
    (OF_AMD, "GPUs of AMD")])
def test_types_that_cannot_train_are_refused_and_nothing_is_written(without_g6, described, message):
    before = without_g6.read_text()
    with pytest.raises(NothingToDoError, match=message):
        add_type("x9.large", "us-east-2", ec2({"InstanceTypes": [described]}), without_g6)
    assert without_g6.read_text() == before


def test_a_type_that_stands_or_does_not_exist_is_refused(without_g6):
    with pytest.raises(NothingToDoError, match=r"p5\.48xlarge is in the catalog already"):
        add_type("p5.48xlarge", "us-east-2", file=without_g6)
    with pytest.raises(NothingToDoError, match=r"EC2 in us-east-2 has no type g9\.large; try another"):
        add_type("g9.large", "us-east-2", ec2(RefusedError("InvalidInstanceType")), without_g6)
    with pytest.raises(CommandError, match="not permitted"):
        add_type("g6.12xlarge", "us-east-2", ec2(RefusedError("UnauthorizedOperation")), without_g6)


def a_product(dollars, **attributes):
    price = {"unit": "Hrs", "pricePerUnit": {"USD": str(dollars)}}
    return json.dumps({
        "product": {"attributes": {"operation": "RunInstances", "usagetype": "USE2-BoxUsage:x", **attributes}},
        "terms": {"OnDemand": {"an-offer": {"priceDimensions": {"a-dimension": price}}}}})


def test_prices_are_written_with_their_date_and_a_capacity_block_is_no_price(tmp_path):
    file = tmp_path / "prices.json"
    shutil.copy(PRICE_FILE, file)

    def products(_region, params):
        wanted = {f["Field"]: f["Value"] for f in params["Filters"]}
        if wanted.get("instanceType") == "g6.12xlarge":
            return {"PriceList": [a_product(1.5, marketoption="CapacityBlock"), a_product(4.5)]}
        if params["ServiceCode"] == "AmazonEKS":
            return {"PriceList": [a_product(0.11, usagetype="USE2-AmazonEKS-Hours:perCluster")]}
        return {"PriceList": []}

    client = FakeAws({"api.pricing.GetProducts": products}).client("pricing", "us-east-1")
    told = update_prices(["us-east-2"], client, file)
    data = json.loads(file.read_text())
    assert data["instances"]["us-east-2"]["g6.12xlarge"][0] == 4.5
    assert data["services"]["us-east-2"]["eks_standard"][0] == 0.11
    assert data["sources"][data["instances"]["us-east-2"]["g6.12xlarge"][1]]["where"] == "AWS Price List API"
    assert told == [f"us-east-2: 1 types of {told[0].split(' of ')[1].split(',')[0]}, 1 services of 3"]


def test_prices_of_a_region_without_eks_are_refused(tmp_path):
    with pytest.raises(NothingToDoError, match="mars-1 is not a region with EKS"):
        update_prices(["mars-1"], object(), tmp_path / "p.json")
