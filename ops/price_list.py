"""Prices from AWS's Price List API, for a plan or for prices.json. Needs credentials."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from settings.prices import Price

API_REGION = "us-east-1"
"""Where the API answers, for every region."""
SOURCE = "AWS Price List API"

_LINUX = {"operatingSystem": "Linux", "tenancy": "Shared", "preInstalledSw": "NA", "capacitystatus": "Used"}
# Service code, filters, and how the usage type of the wanted product ends (it begins with the region's letters).
_SERVICES = {
    "eks_standard": ("AmazonEKS", {}, "AmazonEKS-Hours:perCluster"),
    "eks_extended": ("AmazonEKS", {}, "AmazonEKS-Hours:extendedSupport"),
    "nat_gateway": ("AmazonEC2", {"productFamily": "NAT Gateway"}, "NatGateway-Hours"),
}


def fetch_instances(client: Any, region: str, instance_types: Iterable[str], today: str) -> dict[str, Price]:
    """On-demand prices of Linux instances by type; a type that AWS sells in no such way is left out.

    Args:
        client: boto3's `pricing`, of API_REGION.
        today: the date that the prices are marked with.

    Raises:
        botocore's errors, for example without credentials.
    """
    found = {}
    for name in instance_types:
        products = _products(client, "AmazonEC2", {"instanceType": name, "regionCode": region, **_LINUX})
        for product in products:
            dollars = _hourly(product)
            if dollars and _is_for_everyone(product["product"]["attributes"]):
                found[name] = Price(dollars, SOURCE, today)
    return found


def fetch_services(client: Any, region: str, today: str) -> dict[str, Price]:
    """Prices of the control plane and the NAT gateway; raises as fetch_instances does."""
    found = {}
    for name, (code, filters, ending) in _SERVICES.items():
        for product in _products(client, code, {"regionCode": region, **filters}):
            dollars = _hourly(product)
            if dollars and product["product"]["attributes"].get("usagetype", "").endswith(ending):
                found[name] = Price(dollars, SOURCE, today)
    return found


def _products(client: Any, service: str, wanted: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    filters = [{"Type": "TERM_MATCH", "Field": key, "Value": value} for key, value in wanted.items()]
    for page in client.get_paginator("get_products").paginate(ServiceCode=service, Filters=filters):
        yield from map(json.loads, page["PriceList"])  # each product comes as a string of JSON


def _is_for_everyone(attributes: Mapping[str, str]) -> bool:
    """Not a Capacity Block, and nothing but the instance."""
    return (attributes.get("marketoption", "OnDemand") == "OnDemand"
            and attributes.get("operation") == "RunInstances")


def _hourly(product: Mapping[str, Any]) -> float | None:
    """Dollars an hour, None for what is charged otherwise or not at all."""
    for offer in product["terms"].get("OnDemand", {}).values():
        for dimension in offer["priceDimensions"].values():
            dollars = float(dimension["pricePerUnit"].get("USD", 0))
            if dimension["unit"].lower() in ("hrs", "hours") and dollars > 0:
                return dollars
    return None
