"""The rules as they stand in the .rego files, with what the METADATA comment over each says of it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

from eagleray.catalog import instance_types

_REGO = Path(__file__).parent / "rego"
_METADATA = re.compile(r"^# METADATA\n((?:#.*\n)+)", re.MULTILINE)


@dataclass(frozen=True)
class Rule:
    """A rule by id: why it is one, where that is known from, and the file that holds it."""

    id: str
    reason: str
    source: str
    file: str


@cache
def rules() -> dict[str, Rule]:
    """Every rule by its id, in the order of the files."""
    found = {}
    for name, text in _files().items():
        for comment in _METADATA.findall(text):
            said = yaml.safe_load(re.sub(r"^# ?", "", comment, flags=re.MULTILINE))
            source = "; ".join(one["ref"] for one in said["related_resources"])
            found[said["title"]] = Rule(said["title"], said["description"], source, name)
    return found


def rego() -> dict[str, str]:
    """Rego modules by name: the rules, and the instance types that they know."""
    return {"catalog.rego": _catalog(), **_files()}


def _files() -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(_REGO.glob("*.rego"))}


def _catalog() -> str:
    types = {name: {"gpus": type.gpus, "efa": type.efa, "first": type.first_efa_card}
             for name, type in instance_types().items()}
    # In many lines: the engine reads none that is longer than 1024 characters.
    return f"package eagleray.policy\n\ninstance_types := {json.dumps(types, indent=0)}\n"
