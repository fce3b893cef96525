"""Strict JSON schemas out of KubeRay's CRDs: what the API server would reject or silently drop."""

from functools import cache
from pathlib import Path

import jsonschema
import yaml


@cache
def validator(folder: Path, kind: str) -> jsonschema.Draft202012Validator:
    """Validator of whole objects of a kind (RayCluster, RayJob)."""
    crd = yaml.load((folder / f"ray.io_{kind.lower()}s.yaml").read_text(),
                    Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    (version,) = [v for v in crd["spec"]["versions"] if v["name"] == "v1"]
    schema = version["schema"]["openAPIV3Schema"]
    # The API server knows metadata by itself; the CRD only says that it is an object.
    schema["properties"]["metadata"] = {"type": "object", "required": ["name", "namespace"], "properties": {
        "name": {"type": "string"}, "namespace": {"type": "string"},
        "annotations": {"type": "object", "additionalProperties": {"type": "string"}}}}
    return jsonschema.Draft202012Validator(_strict(schema))


def errors(folder: Path, manifest: dict) -> list[str]:
    """What is wrong with an object, one line each."""
    return [f"{'.'.join(map(str, e.absolute_path))}: {e.message}"
            for e in validator(folder, manifest["kind"]).iter_errors(manifest)]


def _strict(schema):
    """The schema with unknown fields forbidden, except where Kubernetes keeps them."""
    if isinstance(schema, list):
        return [_strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("x-kubernetes-int-or-string"):
        return {key: value for key, value in schema.items() if key != "type"} | {"type": ["integer", "string"]}
    out = {key: value for key, value in schema.items() if key not in ("properties", "items")}
    if "items" in schema:
        out["items"] = _strict(schema["items"])
    if isinstance(schema.get("additionalProperties"), dict):
        out["additionalProperties"] = _strict(schema["additionalProperties"])
    if "properties" in schema:
        out["properties"] = {name: _strict(below) for name, below in schema["properties"].items()}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            out.setdefault("additionalProperties", False)
    return out
