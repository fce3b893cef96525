"""What a rule for templates finds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """Something wrong: which rule, the construct's path, the property, and what is wrong; what would work.

    `template` and `logical_id` say where it lies in CloudFormation.
    """

    rule: str
    construct: str
    property: str
    problem: str
    template: str
    logical_id: str

    def __str__(self) -> str:
        return f"{self.rule}  {self.construct}  {self.property}: {self.problem}"
