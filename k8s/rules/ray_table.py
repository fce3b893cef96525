"""The fields of Ray's objects as a small table, made from KubeRay's CRDs: `python -m k8s.rules.ray_table FOLDER`.

The CRDs have three megabytes, most of it the pod template again and again. The table keeps what is Ray's own
and refers to Kubernetes' definitions for the rest.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import yaml

TABLE = Path(__file__).with_name("ray_fields.json")
KINDS = ("RayCluster", "RayJob", "RayService", "RayCronJob")

_CORE, _META = "io.k8s.api.core.v1", "io.k8s.apimachinery.pkg.apis.meta.v1"
_NETWORK = "io.k8s.api.networking.v1"
# Fields whose type is Kubernetes' own, and Ray's own types that several kinds share.
_KNOWN = {
    "template": f"{_CORE}.PodTemplateSpec",
    "submitterPodTemplate": f"{_CORE}.PodTemplateSpec",
    "headService": f"{_CORE}.Service",
    "serveService": f"{_CORE}.Service",
    "env": f"{_CORE}.EnvVar",
    "envFrom": f"{_CORE}.EnvFromSource",
    "volumeMounts": f"{_CORE}.VolumeMount",
    "securityContext": f"{_CORE}.SecurityContext",
    "valueFrom": f"{_CORE}.EnvVarSource",
    "ports": f"{_NETWORK}.NetworkPolicyPort",
    "to": f"{_NETWORK}.NetworkPolicyPeer",
    "from": f"{_NETWORK}.NetworkPolicyPeer",
    "tls": f"{_NETWORK}.IngressTLS",
    "rayClusterSpec": "RayClusterSpec",
    "rayClusterConfig": "RayClusterSpec",
    "jobTemplate": "RayJobSpec",
}


def types(folder: Path) -> dict[str, Any]:
    """`RayClusterSpec`, `RayJobSpec` … of the CRDs that the folder has."""
    found = {}
    for kind in KINDS:
        path = folder / f"ray.io_{kind.lower()}s.yaml"
        if path.exists():
            found[f"{kind}Spec"] = _fields(_spec(path))
    return found


def _spec(path: Path) -> dict[str, Any]:
    crd = yaml.load(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    (version,) = [v for v in crd["spec"]["versions"] if v["name"] == "v1"]
    return version["schema"]["openAPIV3Schema"]["properties"]["spec"]


def _fields(schema: dict[str, Any]) -> dict[str, Any]:
    # The API server fills in defaults before it looks for what is missing.
    needed = [name for name in schema.get("required", []) if "default" not in schema["properties"][name]]
    return {
        name + ("!" if name in needed else ""): _type(name, below)
        for name, below in sorted(schema["properties"].items())
    }


def _type(name: str, schema: dict[str, Any]) -> Any:
    """See ray_schema.py for what the table's words mean."""
    known = _KNOWN.get(name)
    if name == "resources" and "limits" in schema.get("properties", {}):
        known = f"{_CORE}.ResourceRequirements"
    if schema.get("type") == "array":
        items = schema["items"]
        return [known or _type("", items)] + (["+"] if schema.get("minItems") else [])
    if known:
        return known
    if "properties" in schema:
        return _fields(schema)
    if "enum" in schema:
        return "|".join(schema["enum"])
    if schema.get("x-kubernetes-int-or-string"):
        return "quantity" if "pattern" in schema else "intOrString"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"map of {schema['additionalProperties']['type']}"
    return schema["type"] + (f">={schema['minimum']}" if "minimum" in schema else "")


def main(folder: Path) -> None:
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    table["types"] = types(folder)
    text = json.dumps(table, indent=1)
    # A list of one word on one line.
    TABLE.write_text(
        re.sub(r"\[\s+([^\[\]{}]+?)\s+\]", lambda m: f"[{' '.join(m[1].split())}]", text) + "\n",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
