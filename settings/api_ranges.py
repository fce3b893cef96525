"""Ranges of addresses, and which of them may reach the cluster's API."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Network, collapse_addresses

OPEN_TO_THE_WORLD = "open-to-the-world"
"""What `cluster.api_cidrs` says to let in everybody: words that no slip of the hand makes of an address."""
_MOST = IPv4Network("0.0.0.0/8").num_addresses
"""Addresses of a /8, more than any one organisation comes from; half the internet has 128 times as many."""


def ipv4_network(text: str, example: str) -> IPv4Network:
    """The range; a ValueError that shows `example` where it is none."""
    if ":" in text:
        raise ValueError(f"{text} is an IPv6 range, and the cluster has IPv4 only; use for example {example}")
    try:
        return IPv4Network(text)
    except ValueError as error:
        raise ValueError(f"{text} is not an address range ({error}); use for example {example}") from None


def keep_out_the_world(cidrs: Sequence[str]) -> None:
    """Refuse what is no range, and ranges that cover more addresses than a /8, one alone or all together.

    Raises:
        ValueError: naming the range or the ranges.
    """
    ranges = [ipv4_network(cidr, "203.0.113.7/32") for cidr in cidrs]
    if sum(one.num_addresses for one in collapse_addresses(ranges)) <= _MOST:
        return
    wide = [str(one) for one in ranges if one.num_addresses > _MOST]
    opens = f"{wide[0]} opens" if wide else f"{', '.join(cidrs)} together open"
    raise ValueError(f"{opens} the cluster's API to the world; name your own address, for example "
                     f"[203.0.113.7/32], or say that you mean it: [{OPEN_TO_THE_WORLD}]")
