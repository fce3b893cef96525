"""The table of every rule, made from the rules themselves: `python -m k8s.rules.reference docs/check.md`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from k8s.rules import RULES

# Rules that the settings already keep in our own manifests, with the settings' names.
_SETTINGS = {
    "node-fit": "`gpu.worker_cpu`, `gpu.worker_memory_gib`",
    "deadline": "`ray.start_minutes`",
    "ray-name": "`name`",
    "object-name": "`ray.namespace`",
}
_ROOT = Path(__file__).parents[2]
_TESTS = ("tests/k8s/rule_cases.py", "tests/k8s/test_rules_on_our_manifests.py", "tests/ops/test_check.py")


def markdown() -> str:
    """A Markdown table of all rules by id: why, who notices without us, where it is caught, tested, known from."""
    tests = {name: (_ROOT / name).read_text(encoding="utf-8") for name in _TESTS}
    rows = []
    for rule in sorted(RULES.values(), key=lambda rule: rule.id):
        caught = f"settings ({_SETTINGS[rule.id]}), synth, check" if rule.id in _SETTINGS else "synth, check"
        tested = ", ".join(f"`{Path(name).name}`" for name, text in tests.items() if f'"{rule.id}"' in text)
        rows.append(f"| `{rule.id}` | {rule.reason} | {rule.unseen} | {caught} | {tested} | {rule.source} |")
    head = ["| rule | why | without the check | caught in | test | source |", "|---|---|---|---|---|---|"]
    return "\n".join([*head, *rows])


def write_into(document: Path) -> None:
    """Put the table between the `rules` markers of a Markdown file."""
    between = re.compile(r"(<!-- rules:.*?-->\n).*?(<!-- /rules -->)", re.DOTALL)
    text = document.read_text(encoding="utf-8")
    document.write_text(between.sub(lambda marks: f"{marks[1]}{markdown()}\n{marks[2]}", text), encoding="utf-8")


if __name__ == "__main__":
    write_into(Path(sys.argv[1]))
