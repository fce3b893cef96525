"""The synthesized objects that many tests look at, as a cluster would get them."""

import pytest
from lookup import only


@pytest.fixture
def ray_cluster(synth_l4):
    return only(synth_l4.manifests, "RayCluster")


@pytest.fixture
def ray_job(synth_l4):
    return only(synth_l4.manifests, "RayJob")


@pytest.fixture
def bundle_parts(synth_l4):
    """The ConfigMaps that the submitter mounts."""
    parts = [m for m in synth_l4.manifests if m["kind"] == "ConfigMap" and m.get("immutable")]
    assert len(parts) > 1, "settings and code"
    return parts


@pytest.fixture
def code(bundle_parts):
    """All files of the bundle by key."""
    return {key: text for part in bundle_parts for key, text in part["data"].items()}


@pytest.fixture
def head_pod(ray_cluster):
    return ray_cluster["spec"]["headGroupSpec"]["template"]["spec"]


@pytest.fixture
def worker_group(ray_cluster):
    (group,) = ray_cluster["spec"]["workerGroupSpecs"]
    return group


@pytest.fixture
def worker_pod(worker_group):
    return worker_group["template"]["spec"]


@pytest.fixture
def submitter_pod(ray_job):
    return ray_job["spec"]["submitterPodTemplate"]["spec"]


@pytest.fixture
def ray_pods(head_pod, worker_pod, submitter_pod):
    return {"head": head_pod, "worker": worker_pod, "submitter": submitter_pod}
