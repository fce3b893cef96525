"""Room for one more VPC with its internet gateway and the address of its NAT gateway."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError

from ops.aws import error_code
from ops.preflight.finding import Finding, Region, answered
from ops.preflight.stack_checks import stands


def network_quotas(region: Region, name: str) -> Iterator[Finding]:
    """One finding for each quota that NetworkStack of deployment `name` counts towards."""
    if stands(region, f"{name}-network"):
        yield Finding("network", "ok", f"{name}-network stands: no new VPC or address is needed")
        return
    for row in json.loads((Path(__file__).parent / "quotas.json").read_text())["quotas"]:
        yield from answered("network", lambda row=row: [_room(region, row)])


def _room(region: Region, row: dict[str, Any]) -> Finding:
    pages = region.client("ec2").get_paginator(row["operation"]) if row["key"] != "Addresses" else None
    answers = pages.paginate() if pages else [region.client("ec2").describe_addresses()]
    used = sum(len(answer[row["key"]]) for answer in answers)
    limit = _limit(region.client("service-quotas"), row)
    said = f"{row['name']}: {used} of {limit} in use, {row['need']} needed"
    if used + row["need"] <= limit:
        return Finding("network", "ok", said)
    return Finding("network", "failed", said, (
        f"aws service-quotas request-service-quota-increase --region {region.name} "
        f"--service-code {row['service']} --quota-code {row['code']} --desired-value {used + row['need']}"))


def _limit(quotas: Any, row: dict[str, Any]) -> int:
    wanted = {"ServiceCode": row["service"], "QuotaCode": row["code"]}
    try:
        answer = quotas.get_service_quota(**wanted)
    except ClientError as error:
        if error_code(error) != "NoSuchResourceException":
            raise
        # An account that never had a value of its own.
        answer = quotas.get_aws_default_service_quota(**wanted)
    return int(answer["Quota"]["Value"])
