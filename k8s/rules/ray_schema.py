"""JSON schemas out of the table of Ray's fields (ray_fields.json) and Kubernetes' own definitions.

The table's words: `string`, `integer>=1`, `quantity` …; `a|b` for a choice; `map of string`; the name of a
definition, Ray's or Kubernetes'; a list for a list (with `+`: not empty); an object for one that has these
fields and no others, those with `!` at least.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from k8s.rules.ray_table import KINDS, TABLE

# Relative to it stand Kubernetes' definitions, as kubernetes-validate has them.
BASE = "https://kubernetes.io/api/"
_DEFINITIONS = f"{BASE}_definitions.json#/$defs/"


@cache
def ray_schema() -> dict[str, Any]:
    """Schemas of the Ray kinds, as `$defs` by kind."""
    types = json.loads(TABLE.read_text(encoding="utf-8"))["types"]
    kinds = {kind: _object(kind) for kind in KINDS if f"{kind}Spec" in types}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"{BASE}ray.json",
        "$defs": {**{name: _schema(fields) for name, fields in types.items()}, **kinds},
    }


def _object(kind: str) -> dict[str, Any]:
    return _closed(
        {
            "apiVersion": {"type": "string"},
            "kind": {"const": kind},
            "status": {"type": "object"},
            "metadata": {"$ref": f"{_DEFINITIONS}io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"},
            "spec": {"$ref": f"#/$defs/{kind}Spec"},
        },
        ["metadata", "spec"],
    )


def _closed(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _schema(words: Any) -> dict[str, Any]:
    if isinstance(words, list):
        return {"type": "array", "items": _schema(words[0])} | ({"minItems": 1} if words[1:] == ["+"] else {})
    if isinstance(words, dict):
        return _closed(
            {name.rstrip("!"): _schema(below) for name, below in words.items()},
            [name[:-1] for name in words if name.endswith("!")],
        )
    word, _, least = words.partition(">=")
    if word in ("string", "integer", "number", "boolean"):
        return {"type": word} | ({"minimum": int(least)} if least else {})
    if word in ("quantity", "intOrString"):
        return {"type": ["string", "number" if word == "quantity" else "integer"]}
    if word.startswith("map of "):
        return {"type": "object", "additionalProperties": {"type": word.removeprefix("map of ")}}
    if word.startswith("io.k8s."):
        return {"$ref": _DEFINITIONS + word}
    if word.startswith("Ray") and word.endswith("Spec"):
        return {"$ref": f"#/$defs/{word}"}
    return {"enum": word.split("|")}
