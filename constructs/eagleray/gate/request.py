"""What CloudFormation asks of the gate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from eagleray.gate.shape import Quota, Shape


@dataclass(frozen=True)
class Wanted:
    """The properties of the custom resource, typed: CloudFormation sends every value as text."""

    kind: Literal["on-demand", "spot", "reservation", "reserve", "capacity-block"]
    shape: Shape
    quota: Quota
    cluster: str
    placement_group: str | None = None
    placement_group_arn: str | None = None
    reservation_id: str = ""
    starts: datetime | None = None
    hours: int = 0
    probes: bool = False

    @classmethod
    def of(cls, properties: Mapping[str, Any]) -> Wanted:
        """From ResourceProperties.

        Raises:
            KeyError, ValueError: for properties that this version of the construct does not write.
        """
        starts = properties.get("Starts")
        return cls(
            kind=properties["Kind"],
            shape=Shape(properties["InstanceType"], int(properties["Nodes"]), properties["Zone"],
                        int(properties["Vcpu"])),
            quota=Quota(properties.get("QuotaCode"), properties["QuotaName"], tuple(properties["QuotaTypes"]),
                        "spot" if properties["Kind"] == "spot" else "on-demand"),
            cluster=properties["Cluster"],
            placement_group=properties.get("PlacementGroup"),
            placement_group_arn=properties.get("PlacementGroupArn"),
            reservation_id=properties.get("ReservationId", ""),
            starts=datetime.fromisoformat(starts) if starts else None,
            hours=int(properties.get("Hours", 0)),
            probes=properties.get("Probe") == "true",
        )


@dataclass(frozen=True)
class Request:
    """One event of a custom resource."""

    type: Literal["Create", "Update", "Delete"]
    id: str
    stack: str
    owner: str
    physical_id: str
    properties: Mapping[str, Any]
    before: Mapping[str, Any]

    @classmethod
    def of(cls, event: Mapping[str, Any]) -> Request:
        """From the event as CloudFormation sends it; `owner` names this resource of this stack."""
        return cls(type=event["RequestType"], id=event["RequestId"], stack=event["StackId"],
                   owner=f"{event['StackId']}/{event['LogicalResourceId']}",
                   physical_id=event.get("PhysicalResourceId", ""),
                   properties=event["ResourceProperties"], before=event.get("OldResourceProperties", {}))

    @property
    def prober(self) -> str:
        """Owner of the reservations that are only made to be cancelled."""
        return f"{self.owner}/probe"

    @property
    def changes_nothing(self) -> bool:
        """Whether an update has other reasons than what is asked of the capacity."""
        return self.type == "Update" and _asked(self.properties) == _asked(self.before)


def _asked(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Without what says how to reach the Lambda."""
    return {name: value for name, value in properties.items() if name not in ("ServiceToken", "ServiceTimeout")}
