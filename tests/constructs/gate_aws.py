"""EC2, Service Quotas and CloudFormation as far as the gate asks them: real boto3 clients, answers made here.

Not moto: its capacity reservations know neither capacity nor end. Each answer and each request is checked by
botocore against the service's own model.
"""

from datetime import UTC, datetime, timedelta
from fnmatch import fnmatch
from functools import cache

import boto3
from botocore import xform_name
from botocore.awsrequest import AWSResponse
from botocore.validate import validate_parameters

NOW = datetime(2026, 12, 2, 10, 20, tzinfo=UTC)
OWNER = "arn:aws:cloudformation:us-east-2:123456789012:stack/s/1/Gate"

# What the gate is asked for, as CloudFormation sends it: every value as text.
ON_DEMAND = {
    "Kind": "on-demand", "InstanceType": "g6.12xlarge", "Nodes": "2", "Zone": "us-east-2a", "Vcpu": "48",
    "QuotaCode": "L-DB2E81BA", "QuotaName": "Running On-Demand G and VT instances", "QuotaTypes": ["g*", "vt*"],
    "Cluster": "ours",
}
PROBED = {**ON_DEMAND, "Probe": "true"}
RESERVE = {**ON_DEMAND, "Kind": "reserve", "Hours": "24", "Round": "1"}
NAMED = {**ON_DEMAND, "Kind": "reservation", "ReservationId": "cr-00000000000000001"}
BLOCK = {**NAMED, "Kind": "capacity-block"}


class RefusedError(Exception):
    """AWS's refusal of a call, by code."""

    def __init__(self, code, message="as the test says"):
        super().__init__(code)
        self.code, self.message = code, message


class Account:
    """An account with a quota, zones that have the type, and reservations.

    Attributes:
        refusals: refusal by operation, such as {"CreateCapacityReservation": RefusedError(…)}.
        running: nodes of the cluster `ours`, of the type and in the zone that are asked for.
        others: instances beside them, as EC2 would list them (`starts`).
        reservations: as EC2 would list them, by id.
        calls: names of the operations called.
    """

    def __init__(self, quota=192, zones=("us-east-2a", "us-east-2b"), running=0, status="CREATE_IN_PROGRESS"):
        self.quota, self.zones, self.running, self.status = quota, zones, running, status
        self.refusals, self.reservations, self.calls, self.requests = {}, {}, [], []
        self._by_token, self.others, self.now = {}, [], NOW

    def client(self, service, **more):
        made = _session().client(service, region_name="us-east-2", **more)
        hyphenated = made.meta.service_model.service_id.hyphenize()
        made.meta.events.register(f"before-parameter-build.{hyphenated}", self._remember)
        made.meta.events.register(f"before-call.{hyphenated}", self._reply)
        return made

    def names(self):
        """Tags `eagleray:gate` of the reservations that are billed."""
        return [r["Tags"][0]["Value"] for r in self.reservations.values() if r["State"] == "active"]

    def _remember(self, params, context, **_):
        context["params"] = params

    def _reply(self, model, context, **_):
        self.calls.append(model.name)
        self.requests.append((model.name, context["params"]))
        refusal = self.refusals.get(model.name)
        own = getattr(self, f"_{xform_name(model.name)}", None)
        answer = refusal if refusal is not None or own is None else own(context["params"])
        if callable(answer):
            answer = answer(context["params"])
        if isinstance(answer, RefusedError):
            return AWSResponse("", 400, {}, None), {"Error": {"Code": answer.code, "Message": answer.message}}
        if isinstance(answer, BaseException):
            raise answer
        validate_parameters(answer, model.output_shape)
        assert isinstance(answer, dict), f"{model.name} is not known here"
        return AWSResponse("", 200, {}, None), {**answer, "ResponseMetadata": {"HTTPStatusCode": 200}}

    def _describe_instance_type_offerings(self, params):
        name = params["Filters"][0]["Values"][0]
        return {"InstanceTypeOfferings": [{"InstanceType": name, "Location": zone} for zone in self.zones]}

    def _get_service_quota(self, _params):
        return {"Quota": {"Value": float(self.quota)}}

    def _describe_instances(self, params):
        wanted = {f["Name"]: f["Values"] for f in params["Filters"]}
        found = [_instance("g6.12xlarge", cluster="ours")] * self.running + self.others
        return {"Reservations": [{"Instances": [i for i in found if _is_wanted(i, wanted)]}]}

    def _describe_instance_types(self, params):
        return {"InstanceTypes": [{"InstanceType": name, "VCpuInfo": {"DefaultVCpus": 48}}
                                  for name in params["InstanceTypes"]]}

    def _describe_stacks(self, _params):
        return {"Stacks": [{"StackName": "s", "StackStatus": self.status, "CreationTime": NOW}]}

    def _describe_capacity_reservations(self, params):
        ids = params.get("CapacityReservationIds")
        if ids and ids[0] not in self.reservations:
            return RefusedError("InvalidCapacityReservationId.NotFound", f"The ID '{ids[0]}' does not exist")
        found = [r for r in self.reservations.values() if not ids or r["CapacityReservationId"] in ids]
        for each in params.get("Filters", []):
            if each["Name"] == "state":
                found = [r for r in found if r["State"] in each["Values"]]
            elif each["Name"].startswith("tag:"):
                found = [r for r in found if r["Tags"][0]["Value"] in each["Values"]]
        return {"CapacityReservations": found}

    def _create_capacity_reservation(self, params):
        token = params["ClientToken"]
        if token not in self._by_token:
            placed = {name: params[name] for name in ("PlacementGroupArn",) if name in params}
            self._by_token[token] = self.has(
                params["AvailabilityZone"], params["InstanceType"], params["InstanceCount"],
                CreateDate=self.now, EndDate=params["EndDate"],
                Tags=params["TagSpecifications"][0]["Tags"], **placed)
        return {"CapacityReservation": self.reservations[self._by_token[token]]}

    def _modify_capacity_reservation(self, params):
        found = self.reservations[params["CapacityReservationId"]]
        found |= {"TotalInstanceCount": params["InstanceCount"], "EndDate": params["EndDate"]}
        return {"Return": True}

    def _cancel_capacity_reservation(self, params):
        if params["CapacityReservationId"] not in self.reservations:
            return RefusedError("InvalidCapacityReservationId.NotFound")
        self.reservations[params["CapacityReservationId"]]["State"] = "cancelled"
        return {"Return": True}

    def starts(self, count, name="g6.12xlarge", **more):
        """Let instances run that are nobody's, or of the `cluster`, `lifecycle` or `reservation` given."""
        self.others += [_instance(name, **more)] * count

    def has(self, zone="us-east-2a", name="g6.12xlarge", count=2, **more):
        """Give the account a reservation; its id."""
        number = f"cr-{len(self.reservations) + 1:017x}"
        self.reservations[number] = {
            "CapacityReservationId": number, "InstanceType": name, "AvailabilityZone": zone, "State": "active",
            "TotalInstanceCount": count, "AvailableInstanceCount": count, "InstancePlatform": "Linux/UNIX",
            "Tenancy": "default", "CreateDate": NOW - timedelta(minutes=1), "StartDate": NOW - timedelta(days=1),
            "ReservationType": "default", "Tags": [{"Key": "Name", "Value": "someone's"}], **more}
        return number


@cache
def _session():
    """One for all: it reads the services' models."""
    return boto3.Session(aws_access_key_id="AKIAFAKE", aws_secret_access_key="fake")


def _instance(name, cluster=None, lifecycle=None, reservation=None):
    return {"InstanceId": "i-1", "InstanceType": name, "CpuOptions": {"CoreCount": 24, "ThreadsPerCore": 2},
            "State": {"Name": "running"}, "Placement": {"AvailabilityZone": "us-east-2a"},
            **({"Tags": [{"Key": "eks:cluster-name", "Value": cluster}]} if cluster else {}),
            **({"InstanceLifecycle": lifecycle} if lifecycle else {}),
            **({"CapacityReservationId": reservation} if reservation else {})}


def _is_wanted(instance, filters):
    tags = {tag["Key"]: tag["Value"] for tag in instance.get("Tags", [])}
    has = {"instance-type": instance["InstanceType"], "instance-state-name": instance["State"]["Name"],
           "availability-zone": instance["Placement"]["AvailabilityZone"],
           "capacity-reservation-id": instance.get("CapacityReservationId", ""),
           "tag:eks:cluster-name": tags.get("eks:cluster-name", "")}
    return all(any(fnmatch(has[name], value) for value in values) for name, values in filters.items())
