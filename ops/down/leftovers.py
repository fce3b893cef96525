"""What bills and is still there once the stacks are gone, each with the command that removes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from eagleray.gate.reservations import OWNER_TAG
from ops.aws import FAILURES, CredentialsError, trouble
from ops.preflight.finding import Region
from ops.preflight.stack_checks import STACKS


@dataclass(frozen=True)
class Leftover:
    """A thing that costs; `command` removes it."""

    what: str
    name: str
    command: str


@dataclass(frozen=True)
class NotAsked:
    """A kind of thing that could not be looked for, and why."""

    what: str
    why: str


def leftovers(region: Region, name: str) -> Iterator[Leftover | NotAsked]:
    """What carries the tags or names of deployment `name` in the region. Only reads."""
    for what, find in _KINDS.items():
        try:
            yield from (Leftover(what, found, f"aws {command} --region {region.name}")
                        for found, command in find(region, name))
        except CredentialsError as error:
            yield NotAsked(what, str(error))
        except FAILURES as error:
            yield NotAsked(what, str(trouble(error)))


Found = Iterator[tuple[str, str]]


def _instances(region: Region, name: str) -> Found:
    for page in _pages(region, "ec2", "describe_instances", Filters=[
            _any_of("tag:eks:cluster-name", name),
            _any_of("instance-state-name", "pending", "running", "stopping", "stopped")]):
        for instance in (i for reservation in page["Reservations"] for i in reservation["Instances"]):
            number = instance["InstanceId"]
            yield f"{number} ({instance['InstanceType']})", f"ec2 terminate-instances --instance-ids {number}"


def _reservations(region: Region, name: str) -> Found:
    for page in _pages(region, "ec2", "describe_capacity_reservations", Filters=[
            {"Name": "tag-key", "Values": [OWNER_TAG]}, _any_of("state", "active", "pending", "assessing")]):
        for found in page["CapacityReservations"]:
            owner = next(tag["Value"] for tag in found["Tags"] if tag["Key"] == OWNER_TAG)
            if f"/{name}-network/" not in f"{owner}/":  # the stack's id
                continue
            number = found["CapacityReservationId"]
            yield number, f"ec2 cancel-capacity-reservation --capacity-reservation-id {number}"


def _nat_gateways(region: Region, name: str) -> Found:
    for page in _pages(region, "ec2", "describe_nat_gateways", Filter=[
            _of_stacks(name), _any_of("state", "pending", "available")]):
        for gateway in page["NatGateways"]:
            number = gateway["NatGatewayId"]
            yield number, f"ec2 delete-nat-gateway --nat-gateway-id {number}"


def _addresses(region: Region, name: str) -> Found:
    for address in region.client("ec2").describe_addresses(Filters=[_of_stacks(name)])["Addresses"]:
        number = address["AllocationId"]
        yield f"{number} ({address.get('PublicIp')})", f"ec2 release-address --allocation-id {number}"


def _volumes(region: Region, name: str) -> Found:
    for page in _pages(region, "ec2", "describe_volumes", Filters=[
            _tagged_as_of_cluster(name), _any_of("status", "available", "error")]):
        for volume in page["Volumes"]:
            number = volume["VolumeId"]
            yield f"{number} ({volume['Size']} GiB)", f"ec2 delete-volume --volume-id {number}"


def _interfaces(region: Region, name: str) -> Found:
    """They cost nothing, but a subnet cannot go while they are there."""
    for page in _pages(region, "ec2", "describe_network_interfaces", Filters=[
            _any_of("tag:cluster.k8s.amazonaws.com/name", name), _any_of("status", "available")]):
        for interface in page["NetworkInterfaces"]:
            number = interface["NetworkInterfaceId"]
            yield number, f"ec2 delete-network-interface --network-interface-id {number}"


def _load_balancers(region: Region, name: str) -> Found:
    pages = _pages(region, "resourcegroupstaggingapi", "get_resources",
                   TagFilters=[{"Key": f"kubernetes.io/cluster/{name}"}],
                   ResourceTypeFilters=["elasticloadbalancing:loadbalancer"])
    for arn in (found["ResourceARN"] for page in pages for found in page["ResourceTagMappingList"]):
        name_of = arn.rpartition("/")[2]
        yield arn, (f"elbv2 delete-load-balancer --load-balancer-arn {arn}" if arn.count("/") > 1
                    else f"elb delete-load-balancer --load-balancer-name {name_of}")


def _log_groups(region: Region, name: str) -> Found:
    for prefix in (f"/aws/eks/{name}/", f"/aws/containerinsights/{name}/", f"/aws/lambda/{name}-", f"{name}-"):
        for page in _pages(region, "logs", "describe_log_groups", logGroupNamePrefix=prefix):
            for group in page["logGroups"]:
                yield (f"{group['logGroupName']} ({group.get('storedBytes', 0) / 1e6:.0f} MB)",
                       f"logs delete-log-group --log-group-name {group['logGroupName']}")


def _buckets(region: Region, name: str) -> Found:
    pages = _pages(region, "resourcegroupstaggingapi", "get_resources", TagFilters=[
        {"Key": "aws:cloudformation:stack-name", "Values": _stacks(name)}], ResourceTypeFilters=["s3"])
    for arn in (found["ResourceARN"] for page in pages for found in page["ResourceTagMappingList"]):
        bucket = arn.rpartition(":")[2]
        yield f"{bucket} (your results: it stays until you remove it)", f"s3 rb --force s3://{bucket}"


_KINDS: dict[str, Callable[[Region, str], Found]] = {
    "instance": _instances, "capacity reservation": _reservations, "NAT gateway": _nat_gateways,
    "elastic IP": _addresses, "load balancer": _load_balancers, "volume": _volumes,
    "network interface": _interfaces, "log group": _log_groups, "bucket": _buckets,
}


def _pages(region: Region, service: str, operation: str, **asked: Any) -> Iterator[dict[str, Any]]:
    yield from region.client(service).get_paginator(operation).paginate(**asked)


def _any_of(name: str, *values: str) -> dict[str, Any]:
    return {"Name": name, "Values": list(values)}


def _of_stacks(name: str) -> dict[str, Any]:
    return _any_of("tag:aws:cloudformation:stack-name", *_stacks(name))


def _tagged_as_of_cluster(name: str) -> dict[str, Any]:
    return _any_of("tag-key", f"kubernetes.io/cluster/{name}")


def _stacks(name: str) -> list[str]:
    return [f"{name}-{part}" for part in STACKS]
