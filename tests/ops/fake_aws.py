"""An AWS account of hand-written answers: real boto3 clients whose calls never leave this process.

Each answer is checked against botocore's own model of the service, so that a misspelt field fails the test.
Every operation that is called is remembered.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import boto3
from botocore.awsrequest import AWSResponse
from botocore.validate import validate_parameters

from ops.aws import Aws

Answer = Mapping[str, Any] | Exception | Callable[[str, dict[str, Any]], Any]

ACCOUNT = "123456789012"

# Clients are slow to make, so that all accounts share them: they ask the account that was made last.
_SESSION = boto3.Session(aws_access_key_id="AKIAFAKE", aws_secret_access_key="fake")
_CLIENTS: dict[tuple[str, str], Any] = {}
ZONES = ("us-east-2a", "us-east-2b", "us-east-2c")


class RefusedError(Exception):
    """AWS's refusal of a call, by code."""

    def __init__(self, code: str, message: str = "as the test says") -> None:
        super().__init__(code)
        self.code, self.message = code, message


class FakeAws(Aws):
    """Answers by `service.Operation`; a callable gets the region and the parameters. One at a time.

    Attributes:
        calls: (region, `service.Operation`, parameters) of every call, in order.
    """

    latest: FakeAws

    def __init__(self, answers: Mapping[str, Answer] | None = None) -> None:
        super().__init__()
        FakeAws.latest = self
        self._session = _SESSION
        self.answers: dict[str, Answer] = {**an_account(), **(answers or {})}
        self.calls: list[tuple[str, str, dict[str, Any]]] = []
        self._calls_lock = threading.Lock()

    def names(self) -> list[str]:
        """`ec2.DescribeVpcs` of every call."""
        return [name for _, name, _ in self.calls]

    def _new(self, service: str, region: str) -> Any:
        if (service, region) not in _CLIENTS:
            client = _CLIENTS[service, region] = super()._new(service, region)
            name = client.meta.service_model.service_id.hyphenize()
            client.meta.events.register(f"before-parameter-build.{name}", _remember)
            client.meta.events.register(f"before-call.{name}", lambda **call: FakeAws.latest.reply(**call))
        return _CLIENTS[service, region]

    def reply(self, model: Any, context: dict[str, Any], **_: Any) -> tuple[AWSResponse, Any]:
        """The answer to a call, or its refusal."""
        region, params = context["client_region"], context["eagleray_params"]
        name = f"{model.service_model.endpoint_prefix}.{model.name}"
        with self._calls_lock:
            self.calls.append((region, name, params))
        answer = self.answers[name]
        if callable(answer):
            answer = answer(region, params)
        if isinstance(answer, RefusedError):
            said = {"Error": {"Code": answer.code, "Message": answer.message}}
            return AWSResponse("", 400, {}, None), said  # pyright: ignore[reportReturnType]
        if isinstance(answer, Exception):
            raise answer
        if model.output_shape is not None:
            validate_parameters(dict(answer), model.output_shape)
        return AWSResponse("", 200, {}, None), {**answer, "ResponseMetadata": {"HTTPStatusCode": 200}}  # pyright: ignore[reportReturnType]


def _remember(params: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
    context["eagleray_params"] = params


def an_account() -> dict[str, Answer]:
    """Everything in order, nothing deployed, in every region."""
    return {
        "sts.GetCallerIdentity": {"Account": ACCOUNT, "Arn": f"arn:aws:iam::{ACCOUNT}:user/ann", "UserId": "ann"},
        "ec2.DescribeRegions": {"Regions": [{"RegionName": "us-east-2", "OptInStatus": "opt-in-not-required"}]},
        "ec2.DescribeAvailabilityZones": _zones,
        "ec2.DescribeInstanceTypeOfferings": _offerings,
        "ec2.DescribeInstanceTypes": _instance_types,
        "ec2.DescribeInstances": {"Reservations": []},
        "ec2.DescribeCapacityReservations": {"CapacityReservations": []},
        "ec2.DescribeVpcs": {"Vpcs": [{"VpcId": "vpc-default"}]},
        "ec2.DescribeInternetGateways": {"InternetGateways": []},
        "ec2.DescribeAddresses": {"Addresses": []},
        "servicequotas.GetServiceQuota": {"Quota": {"Value": 192.0}},
        "ssm.GetParameter": {"Parameter": {"Value": "30"}},
        "cloudformation.DescribeStacks": no_stack,
        "iam.GetRole": _role,
        "eks.DescribeClusterVersions": {"clusterVersions": [
            {"clusterVersion": "1.36", "versionStatus": "STANDARD_SUPPORT"}]},
        "api.ecr.BatchGetImage": {"images": [{"repositoryName": "eks/aws-efa-k8s-device-plugin"}]},
    }


def no_stack(_region: str, params: dict[str, Any]) -> Any:
    """CloudFormation's answer for a stack that is not there."""
    return RefusedError("ValidationError", f"Stack with id {params['StackName']} does not exist")


def stack(status: str, *names: str) -> Callable[[str, dict[str, Any]], Any]:
    """CloudFormation's answer where exactly the named stacks stand, in that status."""
    def answer(region: str, params: dict[str, Any]) -> Any:
        if params["StackName"] not in names:
            return no_stack(region, params)
        return {"Stacks": [{"StackName": params["StackName"], "StackStatus": status,
                            "CreationTime": datetime.now(UTC)}]}
    return answer


def reservation(**changes: Any) -> dict[str, Any]:
    """A reservation that fits the default settings."""
    return {
        "CapacityReservationId": "cr-0123456789abcdef0", "InstanceType": "g6.12xlarge",
        "AvailabilityZone": "us-east-2b", "InstancePlatform": "Linux/UNIX", "Tenancy": "default",
        "TotalInstanceCount": 2, "AvailableInstanceCount": 2, "State": "active", "EndDateType": "unlimited",
        "CreateDate": datetime.now(UTC), "StartDate": datetime.now(UTC) - timedelta(days=1),
        "ReservationType": "default", **changes,
    }


def _zones(region: str, _params: dict[str, Any]) -> Any:
    letters = {"us-east-2": "use2", "us-west-2": "usw2", "us-east-1": "use1"}
    prefix = letters.get(region, region.replace("-", ""))
    return {"AvailabilityZones": [
        {"ZoneName": f"{region}{letter}", "ZoneId": f"{prefix}-az{number}", "State": "available",
         "ZoneType": "availability-zone", "RegionName": region} for number, letter in enumerate("abc", start=1)]}


def _offerings(region: str, params: dict[str, Any]) -> Any:
    kind = params["Filters"][0]["Values"][0]
    return {"InstanceTypeOfferings": [
        {"InstanceType": kind, "LocationType": "availability-zone", "Location": f"{region}{letter}"}
        for letter in "abc"]}


def _instance_types(_region: str, params: dict[str, Any]) -> Any:
    assert params["InstanceTypes"] == ["g6.12xlarge"]
    return {"InstanceTypes": [{
        "InstanceType": "g6.12xlarge", "VCpuInfo": {"DefaultVCpus": 48},
        "GpuInfo": {"Gpus": [{"Name": "L4", "Count": 4}]},
        "NetworkInfo": {"EfaSupported": True, "EfaInfo": {"MaximumEfaInterfaces": 1}}}]}


def _role(_region: str, params: dict[str, Any]) -> Any:
    return {"Role": {"Path": "/", "RoleName": params["RoleName"], "RoleId": "AROAFAKEFAKEFAKEFAKE",
                     "Arn": f"arn:aws:iam::{ACCOUNT}:role/{params['RoleName']}", "CreateDate": datetime.now(UTC)}}
