"""Finding objects among manifests."""


def only(manifests, kind, name=None):
    """The one object of that kind (and name)."""
    found = [m for m in manifests if m["kind"] == kind and name in (None, m["metadata"]["name"])]
    assert len(found) == 1, f"{len(found)} {kind} {name or ''}"
    return found[0]


def variables(pod):
    """Environment of a pod's first container, the one that KubeRay takes for Ray."""
    return {e["name"]: e["value"] for e in pod["containers"][0].get("env", [])}
