"""EC2, Service Quotas and CloudFormation as far as the gate asks them: real boto3 clients, answers made here.

Not moto: its capacity reservations know neither capacity nor end. Each answer and each request is checked by
botocore against the service's own model.
"""

from datetime import UTC, datetime, timedelta

from botocore import xform_name
from botocore.awsrequest import AWSResponse
from botocore.validate import validate_parameters

NOW = datetime(2026, 12, 2, 10, 20, tzinfo=UTC)


class RefusedError(Exception):
    """AWS's refusal of a call, by code."""

    def __init__(self, code, message="as the test says"):
        super().__init__(code)
        self.code, self.message = code, message


class Account:
    """An account with a quota, zones that have the type, and reservations.

    Attributes:
        refusals: refusal by operation, such as {"CreateCapacityReservation": RefusedError(…)}.
        reservations: as EC2 would list them, by id.
        calls: names of the operations called.
    """

    def __init__(self, quota=192, zones=("us-east-2a", "us-east-2b"), running=0, status="CREATE_IN_PROGRESS"):
        self.quota, self.zones, self.running, self.status = quota, zones, running, status
        self.refusals, self.reservations, self.calls, self.requests = {}, {}, [], []
        self._by_token = {}

    def client(self, service, **more):
        import boto3

        made = boto3.Session(aws_access_key_id="AKIAFAKE", aws_secret_access_key="fake").client(
            service, region_name="us-east-2", **more)
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
        return AWSResponse("", 200, {}, None), {**answer, "ResponseMetadata": {"HTTPStatusCode": 200}}

    def _describe_instance_type_offerings(self, params):
        name = params["Filters"][0]["Values"][0]
        return {"InstanceTypeOfferings": [{"InstanceType": name, "Location": zone} for zone in self.zones]}

    def _get_service_quota(self, _params):
        return {"Quota": {"Value": float(self.quota)}}

    def _describe_instances(self, params):
        wanted = {f["Name"]: f["Values"] for f in params["Filters"]}
        ours = "tag:eks:cluster-name" in wanted
        instance = {"InstanceId": "i-1", "InstanceType": "g6.12xlarge", "CpuOptions": {
            "CoreCount": 24, "ThreadsPerCore": 2}, "Tags": [{"Key": "eks:cluster-name", "Value": "ours"}]}
        return {"Reservations": [{"Instances": [instance] * self.running}] if ours or self.running else []}

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
                EndDate=params["EndDate"], Tags=params["TagSpecifications"][0]["Tags"], **placed)
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

    def has(self, zone="us-east-2a", name="g6.12xlarge", count=2, **more):
        """Give the account a reservation; its id."""
        number = f"cr-{len(self.reservations) + 1:017x}"
        self.reservations[number] = {
            "CapacityReservationId": number, "InstanceType": name, "AvailabilityZone": zone, "State": "active",
            "TotalInstanceCount": count, "AvailableInstanceCount": count, "InstancePlatform": "Linux/UNIX",
            "Tenancy": "default", "CreateDate": NOW - timedelta(minutes=1), "StartDate": NOW - timedelta(days=1),
            "ReservationType": "default", "Tags": [{"Key": "Name", "Value": "someone's"}], **more}
        return number

