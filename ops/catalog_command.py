"""`eagleray catalog`: the data files about what AWS sells, brought up to date from AWS's own answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

from eagleray import catalog
from ops.aws import FAILURES, Aws, error_code, trouble
from ops.catalog_entry import CATALOG_FILE, SOURCE, as_text, entry_of, with_entry
from ops.errors import CommandError, NothingToDoError
from ops.price_list import API_REGION, fetch_instances, fetch_services
from ops.price_list import SOURCE as PRICE_SOURCE
from settings import prices
from training.hardware import gpus


def add_type(name: str, region: str, ec2: Any = None, file: Path = CATALOG_FILE) -> list[str]:
    """Write the type into the catalog. Returns what a person should know about the new entry.

    Args:
        ec2: boto3's client; by default one of the current credentials.

    Raises:
        CommandError: if AWS does not answer; NothingToDoError: if the type cannot be added.
    """
    data = json.loads(file.read_text())
    if name in (row[0] for row in data["rows"]):
        raise NothingToDoError(f"{name} is in the catalog already")
    entry = entry_of(_describe(name, region, ec2))
    updated = with_entry(data, entry, f"{SOURCE}, {region}", date.today().isoformat())
    file.write_text(as_text(updated))
    facts = ", ".join(f"{column} {value}" for column, value in zip(data["columns"], entry.row, strict=True))
    notes = [f"added to {file.name}: {facts}",
             "allocatable CPU and memory are estimates; gdr is false until aws-ofi-nccl is known to use GPUDirect "
             "RDMA there"]
    gpu = entry.row[1]
    if gpu and gpu not in gpus():
        notes.append(f"training/gpus.json has no {gpu}: nothing is predicted for it until its datasheet stands "
                     "there")
    return notes


def _describe(name: str, region: str, ec2: Any) -> dict[str, Any]:
    try:
        answer = (ec2 or Aws().client("ec2", region)).describe_instance_types(InstanceTypes=[name])
    except FAILURES as error:
        if error_code(error) in ("InvalidInstanceType", "InvalidParameterValue"):
            raise NothingToDoError(f"EC2 in {region} has no type {name}; try another with --region") from None
        raise _no_answer(error) from None
    return answer["InstanceTypes"][0]


def update_prices(regions: Sequence[str], pricing: Any = None, file: Path = prices.PRICE_FILE) -> list[str]:
    """Write today's prices of all types of the catalog in these regions. Returns a line for each region.

    Raises:
        CommandError: if AWS does not answer; then nothing is written. NothingToDoError: for a region without EKS.
    """
    for region in regions:
        if region not in catalog.regions():
            raise NothingToDoError(f"{region} is not a region with EKS, such as us-east-2")
    data, today = json.loads(file.read_text()), date.today().isoformat()
    source = f"api-{today}"
    lines = []
    try:
        client = pricing or Aws().client("pricing", API_REGION)
        for region in regions:
            types = [t.type for t in catalog.instance_types().values() if t.efa or not t.gpus]
            instances = fetch_instances(client, region, types, today)
            services = fetch_services(client, region, today)
            data["instances"][region] = {name: [price.dollars, source] for name, price in instances.items()}
            data["services"].setdefault(region, {}).update(
                {name: [price.dollars, source] for name, price in services.items()})
            lines.append(f"{region}: {len(instances)} types of {len(types)}, {len(services)} services of 3")
    except FAILURES as error:
        raise _no_answer(error) from None
    data["as_of"] = today
    data["sources"][source] = {"where": PRICE_SOURCE, "as_of": today}
    data["sources"] = {name: said for name, said in data["sources"].items() if name in _used(data)}
    file.write_text(prices.as_text(data))
    return lines


def _used(data: dict[str, Any]) -> set[str]:
    """Names of the sources that some price still has."""
    return {row[1] for kind in ("instances", "services") for found in data[kind].values() for row in found.values()}


def _no_answer(error: Exception) -> CommandError:
    found = trouble(error)
    kind = NothingToDoError if found.kind == "credentials" else CommandError
    return kind(f"{found.text}; {found.fix}" if found.fix else found.text)
