"""Objects against the schemas of their kinds, unknown fields forbidden, as the API server holds them."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from functools import cache
from typing import Any, cast

import jsonschema
from kubernetes_validate.utils import all_versions, schema_contents
from referencing import Registry, Resource

from k8s.rules.ray_schema import BASE, ray_schema
from k8s.rules.ray_table import KINDS as RAY_KINDS
from k8s.rules.rule import Fault, Manifest

# Groups whose kinds Kubernetes itself defines; of other groups no schema is known.
_BUILT_IN = {
    "",
    "apps",
    "batch",
    "autoscaling",
    "policy",
    "admissionregistration.k8s.io",
    "networking.k8s.io",
    "certificates.k8s.io",
    "coordination.k8s.io",
    "discovery.k8s.io",
    "rbac.authorization.k8s.io",
    "scheduling.k8s.io",
    "storage.k8s.io",
    "resource.k8s.io",
    "node.k8s.io",
    "events.k8s.io",
    "apiextensions.k8s.io",
}
_RAY_VERSIONS = ("ray.io/v1", "ray.io/v1alpha1")
_MOST_ERRORS = 50


def faults(manifest: Manifest, version: str) -> tuple[list[tuple[str, Fault]], dict[str, Any]]:
    """What the schema says against an object, each with its rule's id; and the object without what is mistyped.

    Rules can read the second without asking whether a list is a list.
    """
    rule = "ray-schema" if manifest.group == "ray.io" else "core-schema"
    try:
        validator = _validator(manifest, version)
    except FileNotFoundError:
        known = f"{manifest.kind} of {manifest.body.get('apiVersion')} is not known to "
        where = "KubeRay 1.7.0" if rule == "ray-schema" else f"Kubernetes {version}"
        near = get_close_matches(manifest.kind, RAY_KINDS) if rule == "ray-schema" else []
        return [
            (rule, manifest.fault("kind", known + where, _or(near, "correct apiVersion and kind")))
        ], manifest.body
    if validator is None:
        return [], manifest.body
    found, wrong = [], []
    for error in validator.iter_errors(manifest.body):
        if len(found) < _MOST_ERRORS:
            found += [(rule, fault) for fault in _told(manifest, error)]
        if error.validator not in ("additionalProperties", "required", "minItems"):
            wrong.append(list(error.absolute_path))
    return found, _without(manifest.body, wrong)


def _validator(manifest: Manifest, version: str) -> jsonschema.Draft202012Validator | None:
    if manifest.group == "ray.io":
        if manifest.kind not in RAY_KINDS or str(manifest.body.get("apiVersion")) not in _RAY_VERSIONS:
            raise FileNotFoundError(manifest.kind)
        return jsonschema.Draft202012Validator(
            {"$ref": f"{BASE}ray.json#/$defs/{manifest.kind}"}, registry=_registry(version)
        )
    if manifest.group not in _BUILT_IN:
        return None
    version_of_group = str(manifest.body.get("apiVersion")).rpartition("/")[2]
    group = manifest.group.split(".")[0]
    name = "-".join(part for part in (manifest.kind.lower(), group, version_of_group) if part)
    return jsonschema.Draft202012Validator(_core(name, version), registry=_registry(version))


@cache
def _core(name: str, version: str) -> dict[str, Any]:
    if not name.replace("-", "").isalnum():
        raise FileNotFoundError(name)
    return _read(f"{name}.json", version)


@cache
def _registry(version: str) -> Registry:
    definitions = _read("_definitions.json", version)
    return Registry().with_resources(
        [
            (f"{BASE}_definitions.json", Resource.from_contents(definitions)),
            (f"{BASE}ray.json", Resource.from_contents(ray_schema())),
        ]
    )


def _read(name: str, version: str) -> dict[str, Any]:
    """A strict schema of the newest Kubernetes that is no newer than `version` (`1.36`)."""
    wanted = tuple(map(int, version.split(".")[:2]))
    known = [v for v in all_versions() if tuple(map(int, v.split(".")[:2])) <= wanted]
    return schema_contents(f"kubernetes-json-schema/v{known[-1]}-local-strict/{name}", version)


def _told(manifest: Manifest, error: jsonschema.ValidationError) -> Iterator[Fault]:
    field, given = _dotted(error.absolute_path), cast(Any, error.validator_value)
    above = f"{field}." if field else ""
    schema = error.schema if isinstance(error.schema, dict) else {}
    if error.validator == "additionalProperties" and given is False:
        known = schema.get("properties", {})
        for name in sorted(set(cast(dict, error.instance)) - set(known), key=str):
            yield manifest.fault(
                f"{above}{name}",
                "is no field that Kubernetes knows",
                _or(get_close_matches(name, known), "remove it, or correct its name or indentation"),
            )
    elif error.validator == "required":
        missing = [name for name in given if name not in cast(dict, error.instance)]
        for name in missing[:1]:
            yield manifest.fault(f"{above}{name}", "is missing", "it must be set")
    elif error.validator in ("enum", "const"):
        choices = given if error.validator == "enum" else [given]
        yield manifest.fault(field, f"is {_short(error.instance)}", f"use {' or '.join(map(str, choices))}")
    elif error.validator in ("type", "oneOf"):
        yield manifest.fault(field, f"is {_kind(error.instance)}, {_short(error.instance)}", _type_mend(error))
    else:
        yield manifest.fault(
            field, f"is {_short(error.instance)}", f"use {error.validator} {given}"
        )


def _type_mend(error: jsonschema.ValidationError) -> str:
    wanted = cast(Any, error.validator_value)
    if error.validator == "oneOf":
        wanted = [t for choice in wanted for t in choice.get("type", [])]
    names = [wanted] if isinstance(wanted, str) else [t for t in wanted if t != "null"]
    quotable = isinstance(error.instance, int | float | bool) and "string" in names
    quoted = f', in quotes: "{str(error.instance).lower()}"' if quotable else ""
    return f"use {' or '.join(_NAMES.get(name, name) for name in names)}{quoted}"


_NAMES = {
    "string": "a text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping",
}


def _kind(value: Any) -> str:
    kinds = {
        bool: "true or false",
        int: "a number",
        float: "a number",
        str: "a text",
        list: "a list",
        dict: "a mapping",
    }
    return kinds.get(type(value), type(value).__name__)


def _short(value: Any) -> str:
    text = (
        repr(value) if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)
    )
    return text if len(text) <= 60 else f"{text[:57]}…"


def _or(near: list[str], otherwise: str) -> str:
    return f"meant is perhaps {near[0]}" if near else otherwise


def _dotted(path: Any) -> str:
    """`spec.containers[0].env`."""
    text = ""
    for key in path:
        text += f"[{key}]" if isinstance(key, int) else f".{key}" if text else str(key)
    return text


def _without(body: dict[str, Any], paths: list[list[Any]]) -> dict[str, Any]:
    """A copy in which these places are gone; in a list an empty mapping keeps the place."""
    if not paths:
        return body
    body = _copy(body)
    for path in paths:
        *above, last = path or [None]
        parent: Any = body
        for key in above:
            parent = parent[key] if isinstance(parent, list) else parent.get(key, {})
        if isinstance(parent, list):
            parent[last] = {}
        else:
            parent.pop(last, None)
    return body


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(below) for key, below in value.items()}
    return [_copy(below) for below in value] if isinstance(value, list) else value
