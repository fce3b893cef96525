"""Every manifest against the schema of its kind, unknown fields forbidden."""

import copy
import json
import os
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from crd_schema import errors
from lookup import only

from k8s.rules import Manifest, ray_table
from k8s.rules.schemas import faults

FOLDER = os.environ.get("KUBERAY_CRDS", "")
CRDS = Path(FOLDER)
needs_crds = pytest.mark.skipif(
    not FOLDER, reason="KUBERAY_CRDS names no folder with KubeRay's CRDs, so Ray's objects are not checked")
RAY_KINDS = {"RayCluster", "RayJob"}
CLUSTERS = ["synth_l4", "synth_h100"]


@pytest.mark.parametrize("fixture", CLUSTERS)
def test_core_objects_are_valid_for_the_clusters_version(request, fixture):
    core = [m for m in request.getfixturevalue(fixture).manifests if m["kind"] not in RAY_KINDS]
    assert {m["kind"] for m in core} == {"Namespace", "DaemonSet", "ServiceAccount", "NetworkPolicy", "ConfigMap"}
    for manifest in core:
        kubernetes_validate.validate(manifest, "1.36", strict=True)


@pytest.mark.parametrize("fixture", CLUSTERS)
def test_pods_inside_ray_objects_are_valid_pods(request, fixture):
    manifests = request.getfixturevalue(fixture).manifests
    cluster, job = only(manifests, "RayCluster")["spec"], only(manifests, "RayJob")["spec"]
    templates = [cluster["headGroupSpec"]["template"], cluster["workerGroupSpecs"][0]["template"],
                 job["submitterPodTemplate"]]
    for template in templates:
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, **template}
        kubernetes_validate.validate(pod, "1.36", strict=True)


@needs_crds
@pytest.mark.parametrize("kind", sorted(RAY_KINDS))
@pytest.mark.parametrize("fixture", CLUSTERS)
def test_ray_objects_are_what_kuberays_crds_take(request, fixture, kind):
    assert errors(CRDS, only(request.getfixturevalue(fixture).manifests, kind)) == []


def _with(manifest, path, value):
    changed = copy.deepcopy(manifest)
    where = changed
    *above, last = path.split(".")
    for key in above:
        where = where[int(key) if key.isdigit() else key]
    where[last] = value
    return changed


@needs_crds
@pytest.mark.parametrize(("kind", "path", "value"), [
    ("RayJob", "spec.submissionmode", "K8sJobMode"),
    ("RayJob", "spec.preRunningDeadlineSeconds", 0),
    ("RayJob", "spec.entrypointNumCpus", "none"),
    ("RayJob", "spec.submitterPodTemplate.spec.containers.0.volumeMount", []),
    ("RayCluster", "spec.headGroupSpec.rayStartParams.num-cpus", 0),
    ("RayCluster", "spec.workerGroupSpecs.0.template.spec.toleration", []),
    ("RayCluster", "spec.workerGroupSpecs.0.template.spec.containers.0.resources.limits.memory", "lots"),
    ("RayCluster", "spec.headGroupSpec.template.spec.containers", None),
])
def test_the_schema_is_strict_enough_to_see_a_mistake(synth_l4, kind, path, value):
    wrong = _with(only(synth_l4.manifests, kind), path, value)
    assert errors(CRDS, wrong)
    # So is the small table of it; a word that is no quantity has a rule of its own, and so has a null.
    if value not in ("lots", None):
        assert faults(Manifest(wrong), "1.36")[0]


def test_files_hold_what_the_stacks_apply(synth_l4):
    folder = synth_l4.outdir / "manifests"
    in_files = [yaml.safe_load(path.read_text()) for path in sorted(folder.glob("*.yaml"))]
    assert in_files == synth_l4.stacks["PlatformStack"].manifests + synth_l4.stacks["TrainingStack"].manifests
    assert not [path for path in folder.iterdir() if "${Token[" in path.read_text()]


@needs_crds
def test_the_table_of_rays_fields_is_that_of_the_crds():
    found = ray_table.types(CRDS)
    known = json.loads(ray_table.TABLE.read_text())["types"]
    assert {"RayClusterSpec", "RayJobSpec"} <= set(found)
    assert found == {name: known[name] for name in found}
