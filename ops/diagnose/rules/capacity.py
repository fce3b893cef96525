"""GPUs that AWS does not give: capacity, quotas, reservations, and an autoscaler that does not ask for them."""

from __future__ import annotations

import re

from eagleray.catalog import instance_types, quota
from ops.diagnose.evidence import Evidence, Hit
from ops.diagnose.finding import INFERRED, STATED, Finding, Signature

_TYPE = re.compile(r"\b((?:g|p|vt)\d\w*(?:-\w+)?\.(?:\d*x?large|metal))\b")
_ZONE = r"(?P<zone>[a-z]{2}(?:-[a-z]+)+-\d[a-z])"
_LACKS = re.compile(r"Insufficient(?:Instance|Host)?Capacity|UnfulfillableCapacity|"
                    r"(?:do(?:es)? not have|no) (?:sufficient|enough) .{0,60}capacity|no Spot capacity available|"
                    r"\bcapacity: (?P<gate>[\w-]+ has no \d+ x)", re.IGNORECASE)
_QUOTA = re.compile(r"VcpuLimitExceeded|vCPU (?:capacity than your current vCPU )?limit of (?P<limit>\d+)|"
                    r"InstanceLimitExceeded|MaxSpotInstanceCountExceeded|\bquota: \d+ x", re.IGNORECASE)


def findings(evidence: Evidence) -> list[Finding]:
    """Capacity, quota and reservations."""
    return [*_reservations(evidence), *_capacity(evidence), *_quota(evidence),
            *(found for signature in SIGNATURES for found in signature.findings(evidence))]


def _capacity(evidence: Evidence) -> list[Finding]:
    hits = [hit for hit in evidence.grep(("capacity",), _LACKS)
            if "ReservationCapacityExceeded" not in hit.line.text]
    if not hits or _reserved_elsewhere(evidence):
        return []
    text = " ".join(hit.line.text for hit in hits[:20])
    kind, zones = _instance_type(text) or "the instance type", re.findall(_ZONE, text)
    choosing = re.search(r"(?:choosing|choose) ([a-z0-9, -]+\d[a-z])", text)
    market = "spot" if re.search(r"\bspot\b", text, re.IGNORECASE) else "on-demand"
    zone = zones[0] if zones else "the zone of the node group's subnet"
    others = f"zone {choosing[1]}" if choosing else "another zone or region"
    return [Finding(
        "capacity/insufficient", f"EC2 has no {market} capacity for {kind} in {zone}, the only zone in which the "
        "node group may launch (all EFA nodes share one subnet).",
        f"Move the node group to {others}: `eagleray up --azs …` tries zones in turn and `eagleray preflight "
        "--probe` tells where nodes are free; or take a reservation (ODCR) or a Capacity Block "
        "(gpu.capacity.kind). The Auto Scaling group keeps trying meanwhile.",
        [hit.line for hit in hits], STATED)]


def _quota(evidence: Evidence) -> list[Finding]:
    hits = evidence.grep(("limit", "quota", "maxspot"), _QUOTA)
    if not hits:
        return []
    text = " ".join(hit.line.text for hit in hits)
    nearby = " ".join(row for document in evidence.documents for row in document.rows[:2000] if "large" in row)
    kind = _instance_type(text) or _instance_type(nearby)
    market = "spot" if re.search(r"spot", text, re.IGNORECASE) else "on-demand"
    limit = next((f" of {hit.match['limit']}" for hit in hits if hit.match["limit"]), "")
    return [Finding(
        "capacity/quota", f"The account's {market} vCPU limit{limit} (Service Quotas) for the family of "
        f"{kind or 'the GPU nodes'} is too low in this region, so no GPU instance can be launched; what was "
        "cancelled or rolled back afterwards follows from it.",
        f"Ask for a higher quota: {_request(kind, market)}. Then deploy again; `eagleray preflight` shows quota "
        "and use.", [hit.line for hit in hits], STATED)]


def _request(kind: str | None, market: str) -> str:
    """The command with the code of the data file, and how many vCPUs a node takes."""
    known = instance_types()
    families = [kind] if kind in known else ["g6.12xlarge", "p5.48xlarge"]
    asked = []
    for name in families:
        code = quota(name, "spot" if market == "spot" else "on-demand").code
        asked.append(f"{code or 'its code'} with {known[name].vcpu} vCPU for each {name}")
    return ("`aws service-quotas request-service-quota-increase --service-code ec2 --quota-code CODE "
            f"--desired-value VCPU`, {' or '.join(asked)}")


def _reserved_elsewhere(evidence: Evidence) -> bool:
    """An active, unused reservation beside a launch without capacity."""
    return bool(_unused(evidence)) and evidence.has("placement", r"placement.?group", notes=True)


def _unused(evidence: Evidence) -> list[Hit]:
    return evidence.grep("availableinstancecount", r"AvailableInstanceCount\W+(?P<free>[1-9]\d*)")


def _reservations(evidence: Evidence) -> list[Finding]:
    if not _reserved_elsewhere(evidence):
        return []
    hits = evidence.grep(("capacity",), _LACKS)
    if not hits:
        return []
    return [Finding(
        "capacity/reservation-outside-group", "An active reservation (ODCR) has free instances, but it was not "
                                              "made "
        "in the cluster placement group that the launch template forces, so a launch there finds no capacity.",
        "Make the reservation in the node group's placement group (`PlacementGroupArn`), or launch without a "
        "group; `gpu.capacity.id` with `eagleray preflight` checks that they match.",
        [*(hit.line for hit in hits), *(hit.line for hit in _unused(evidence))], INFERRED)]


def _instance_type(text: str) -> str | None:
    found = _TYPE.search(text)
    return found[1] if found else None


SIGNATURES = (
    Signature(
        "capacity/reservation-full", ("reservationcapacityexceeded", "capacity reservation"),
        r"ReservationCapacityExceeded|(?:capacity reservation|reservation) .{0,80}(?:no|insufficient|not enough) "
        r"(?:available )?(?:capacity|instances)",
        "The capacity reservation has no free instance left: it is smaller than the node group, or other instances "
        "use it.",
        "See `aws ec2 describe-capacity-reservations` (AvailableInstanceCount), end what else runs in it, enlarge "
        "it, or lower gpu.nodes; `eagleray preflight` compares both."),
    Signature(
        "capacity/reservation-gone", ("reservation", "capacity block", "capacity-block"),
        r"InvalidCapacityReservation\w*|(?:reservation|capacity block) .{0,80}(?:expired|has ended|does not exist|"
        r"is not active|not yet active|cancelled|payment-(?:pending|failed)|has not started)",
        "The capacity reservation or Capacity Block is not active: it has ended, has not begun, or the id is of "
        "another account or region.",
        "Check its state and times (`aws ec2 describe-capacity-reservations`, `eagleray preflight`), set "
        "gpu.capacity.starts for a Capacity Block that begins later, and gpu.capacity.id to one that is active."),
    Signature(
        "capacity/type-not-in-zone", ("not supported in", "offering:"),
        r"instance type \(?(?P<type>[\w.-]+)\)? is not supported in your requested Availability Zone"
        rf"(?: \({_ZONE}\))?|\boffering: [\w-]+ has no|\boffering: no zone of",
        "The instance type {type} is not offered in zone {zone}.",
        "Choose a zone that offers it: `eagleray preflight --regions …` lists them (`aws ec2 "
        "describe-instance-type-offerings --location-type availability-zone`), and network.zone or `eagleray up "
        "--azs` sets it.", default={"type": "of the GPU nodes", "zone": "of the node group's subnet"}),
    Signature(
        "capacity/placement-group", ("placement group", "placementgroup"),
        r"InvalidPlacementGroup|placement group[^\n]*(?:more than one|different|another|single) Availability Zone|"
        r"(?:more than one|several|multiple) Availability Zones?[^\n]*placement group",
        "A cluster placement group is of one Availability Zone, and the node group may launch in several: its "
        "subnets lie in more than one zone.",
        "Give the GPU node group exactly one private subnet, in the zone of the placement group (network.zone)."),
    Signature(
        "capacity/address-limit", ("addresslimitexceeded", "maximum number of addresses"),
        r"AddressLimitExceeded|maximum number of addresses has been reached",
        "The account has no Elastic IP address left in this region for the NAT gateway (quota L-0263D0A3).",
        "Release unused addresses (`aws ec2 describe-addresses`) or ask for a higher quota, then deploy again."),
    Signature(
        "capacity/vpc-limit", ("vpclimitexceeded", "maximum number of vpcs", "internetgatewaylimit"),
        r"VpcLimitExceeded|maximum number of VPCs|InternetGatewayLimitExceeded",
        "The account has reached its limit of VPCs in this region (quota L-F678F1CE).",
        "Delete VPCs that nobody uses or ask for a higher quota, then deploy again."),
    Signature(
        "capacity/spot-interrupted", ("spot", "rebalance"),
        r"spot (?:instance )?interruption|SpotInterruption|instance-action.{0,40}terminate|"
        r"Server\.SpotInstanceTermination|spot instance .{0,40}(?:reclaimed|terminated)",
        "EC2 took the spot instance back (spot interruption), and the node with its ranks went with it.",
        "The job goes on from its last checkpoint once a node is there; use capacity kind on-demand or a "
        "reservation where that happens too often, and checkpoint more often."),
)

