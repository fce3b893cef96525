"""May one pod speak with another? What Kubernetes' NetworkPolicies say, worked out without a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any

_NAME_LABEL = "kubernetes.io/metadata.name"


@dataclass(frozen=True)
class End:
    """A pod, or an address outside (`namespace` is None then). Every namespace has its name as a label.

    `ports` are the names of a pod's container ports, which a policy may use in place of numbers.
    """

    address: str
    namespace: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    ports: Mapping[str, int] = field(default_factory=dict)


def may_reach(policies: Sequence[Mapping[str, Any]], source: End, target: End, port: int,
              protocol: str = "TCP") -> bool:
    """Whether `source` may open a connection to `port` of `target`; answers are always let through.

    Both ends have a say. A pod that no policy selects for a direction is free in that direction; one that is
    selected may do what at least one of its policies allows, and nothing else.

    Args:
        policies: NetworkPolicy objects of all namespaces, as they stand in YAML.
    """
    return all(lets(policies, source, target, port, protocol) for lets in (lets_out, lets_in))


def lets_out(policies: Sequence[Mapping[str, Any]], source: End, target: End, port: int,
             protocol: str = "TCP") -> bool:
    """Whether the policies of `source` let it go to `target`, whatever those of `target` say."""
    return _allows(policies, source, "Egress", target, target, port, protocol)


def lets_in(policies: Sequence[Mapping[str, Any]], source: End, target: End, port: int,
            protocol: str = "TCP") -> bool:
    """Whether the policies of `target` let `source` come, whatever those of `source` say."""
    return _allows(policies, target, "Ingress", source, target, port, protocol)


def _types(spec: Mapping[str, Any]) -> Sequence[str]:
    return spec.get("policyTypes") or (["Ingress", "Egress"] if spec.get("egress") else ["Ingress"])


def _allows(policies: Sequence[Mapping[str, Any]], pod: End, direction: str, peer: End, target: End, port: int,
            protocol: str) -> bool:
    if pod.namespace is None:
        return True
    specs = [spec for policy in policies if direction in _types(spec := policy.get("spec") or {})
             and (policy.get("metadata") or {}).get("namespace", "default") == pod.namespace
             and selects(spec.get("podSelector"), pod.labels)]
    rules = [rule or {} for spec in specs for rule in spec.get(direction.lower()) or []]
    peers = "from" if direction == "Ingress" else "to"
    return not specs or any(
        _names_peer(rule.get(peers), pod, peer) and _names_port(rule.get("ports"), target, port, protocol)
        for rule in rules
    )


def _names_peer(peers: Sequence[Mapping[str, Any]] | None, pod: End, peer: End) -> bool:
    return not peers or any(_is_peer(one, pod, peer) for one in peers)


def _is_peer(one: Mapping[str, Any], pod: End, peer: End) -> bool:
    if block := one.get("ipBlock"):
        return _within(peer.address, block.get("cidr")) and not any(
            _within(peer.address, hole) for hole in block.get("except") or []
        )
    if peer.namespace is None:
        return False
    if "namespaceSelector" in one:
        home = selects(one["namespaceSelector"], {_NAME_LABEL: peer.namespace})
    else:
        home = peer.namespace == pod.namespace
    return home and selects(one.get("podSelector"), peer.labels)


def _within(address: str, cidr: Any) -> bool:
    block = address_range(cidr)
    return block is not None and ip_address(address) in block


def address_range(text: Any) -> IPv4Network | IPv6Network | None:
    """`10.0.0.0/16` as a network; None for what is none."""
    try:
        return ip_network(str(text), strict=False) if "/" in str(text) else None
    except ValueError:
        return None


def inside(part: IPv4Network | IPv6Network, whole: IPv4Network | IPv6Network) -> bool:
    """Whether one range lies in another."""
    return part.version == whole.version and part.network_address in whole and part.prefixlen >= whole.prefixlen


def _names_port(ports: Sequence[Mapping[str, Any]] | None, target: End, port: int, protocol: str) -> bool:
    return not ports or any(
        one.get("protocol", "TCP") == protocol and _is_port(one, target, port) for one in ports
    )


def _is_port(one: Mapping[str, Any], target: End, port: int) -> bool:
    first = one.get("port")
    if isinstance(first, str):
        first = target.ports.get(first, -1)
    return first is None or first <= port <= one.get("endPort", first)


def selects(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """Whether a label selector (an empty one selects everything) takes these labels."""
    wanted = (selector or {}).get("matchLabels") or {}
    expressions = (selector or {}).get("matchExpressions") or []
    return all(labels.get(key) == value for key, value in wanted.items()) and all(
        _holds(expression, labels) for expression in expressions
    )


def _holds(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    value, values = labels.get(expression.get("key", "")), expression.get("values") or []
    match expression.get("operator"):
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
    return value is None
