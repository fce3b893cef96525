"""The table of all rules, made from the rules: `python -m eagleray.policy.reference docs/security.md`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from eagleray.policy.rules import rules

# Rules that the settings keep before there is a template, with the settings' names.
_SETTINGS = {
    "api-endpoint": "`cluster.api_cidrs`",
    "api-encryption": "`cluster.version`",
    "efa-interfaces": "`gpu.instance_type`",
    "capacity-block": "`gpu.capacity`",
    "capacity-target": "`gpu.capacity`",
}
# Rules whose subject the capacity gate asks AWS about too, when the first stack is deployed.
_GATE = {"placement-group", "capacity-block", "capacity-target"}
_TEST = "`test_training_policy.py`"


def markdown() -> str:
    """A Markdown table of all rules by id: why, where it is caught, tested, known from."""
    rows = []
    for rule in sorted(rules().values(), key=lambda rule: rule.id):
        places = [f"settings ({_SETTINGS[rule.id]})"] if rule.id in _SETTINGS else []
        places += ["synth", *(["gate"] if rule.id in _GATE else [])]
        rows.append(f"| `{rule.id}` | {rule.reason} | {', '.join(places)} | {_TEST} | {rule.source} |")
    return "\n".join(["| rule | why | caught in | test | source |", "|---|---|---|---|---|", *rows])


def write_into(document: Path) -> None:
    """Put the table between the `template rules` markers of a Markdown file."""
    between = re.compile(r"(<!-- template rules:.*?-->\n).*?(<!-- /template rules -->)", re.DOTALL)
    text = document.read_text(encoding="utf-8")
    document.write_text(between.sub(lambda marks: f"{marks[1]}{markdown()}\n{marks[2]}", text), encoding="utf-8")


if __name__ == "__main__":
    write_into(Path(sys.argv[1]))
