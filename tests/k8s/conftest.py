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
def code(synth_l4):
    return only(synth_l4.manifests, "ConfigMap")


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
