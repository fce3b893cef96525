"""What a deployment asks for, and what a check of it found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Shape:
    """Instances of one type in one zone. `vcpu` is for one of them."""

    instance_type: str
    nodes: int
    zone: str
    vcpu: int

    def __str__(self) -> str:
        """`2 x g6.12xlarge`."""
        return f"{self.nodes} x {self.instance_type}"


@dataclass(frozen=True)
class Quota:
    """A quota of Service Quotas for service ec2, in vCPUs, and the instance types that count towards it.

    `types` are patterns such as `g*`; `code` is None where it is not known which quota counts.
    """

    code: str | None
    name: str
    types: tuple[str, ...]
    market: Literal["on-demand", "spot"]


@dataclass(frozen=True)
class Check:
    """One question to AWS and its answer.

    `failed` cannot work and says in `fix` what to do; `unknown` could not be asked, which stops nobody. Both
    texts are whole sentences without an end stop, for a person to read.
    """

    name: str
    status: Literal["ok", "failed", "unknown"]
    detail: str
    fix: str = ""

    def __str__(self) -> str:
        """`quota: 96 vCPU needed, … Fix: …`."""
        return f"{self.name}: {self.detail}" + (f". Fix: {self.fix}" if self.fix else "")
