"""The synthesized manifests against the cluster that KUBECONFIG names: `make test-cluster`, not in `make test`.

A dry run changes nothing. With CLUSTER_TESTS=apply all objects go into a namespace made for them, and are removed.
The device plugins start there, and where an operator watches all namespaces the job too: use a cluster of its own.

Nothing of this has run against a real API server: there was none. tests/ops/test_cluster_suite.py tries its logic
against one that only stores what it is told.
"""

import os
from pathlib import Path

import pytest

from tests.cluster.applying import NoClusterError, UnknownKindError, apply_and_remove, connect

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="session")
def cluster():
    try:
        return connect()
    except NoClusterError as error:
        pytest.skip(str(error))


def test_the_api_server_takes_every_object_in_a_dry_run(cluster, synth_l4):
    refused, unknown = [], set()
    for manifest in synth_l4.manifests:
        try:
            cluster.dry_run(manifest)
        except UnknownKindError as error:
            unknown.add(str(error))
        except Exception as error:  # whatever the server has against it
            refused.append(f"{manifest['kind']}/{manifest['metadata']['name']}: {error}")
    assert refused == []
    if unknown:
        pytest.skip(f"all but these: {', '.join(sorted(unknown))}; install KubeRay, or use CLUSTER_TESTS=apply")


def test_all_objects_are_stored_and_go_again(cluster, synth_l4):
    if os.environ.get("CLUSTER_TESTS") != "apply":
        pytest.skip("it changes the cluster; ask for it with CLUSTER_TESTS=apply")
    if not os.environ.get("KUBERAY_CRDS"):
        pytest.skip("KUBERAY_CRDS names no folder with KubeRay's CRDs")
    applied = apply_and_remove(cluster, synth_l4.manifests, Path(os.environ["KUBERAY_CRDS"]))
    assert {one.partition("/")[0] for one in applied} >= {"RayCluster", "RayJob", "ConfigMap", "NetworkPolicy"}
