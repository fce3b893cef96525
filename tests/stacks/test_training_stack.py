"""The training as CloudFormation sees it: permissions, order, and what a change changes."""

import json

import pytest

STACK = "TrainingStack"
MANIFEST = "Custom::AWSCDK-EKS-KubernetesResource"


def text_of(manifest):
    """A Manifest property with references written as their names."""
    if isinstance(manifest, str):
        return manifest
    return "".join(part if isinstance(part, str) else part["Ref"] for part in manifest["Fn::Join"][1])


def applied(synth):
    """{kind: (logical id, object, resource)} of the stack; of the ConfigMaps that of the settings."""
    found = {}
    for name, resource in synth.resources(STACK, MANIFEST).items():
        (manifest,) = json.loads(text_of(resource["Properties"]["Manifest"]))
        if "-code-" not in manifest["metadata"]["name"]:
            found[manifest["kind"]] = (name, manifest, resource)
    return found


def depends_on(synth, kind):
    return set(applied(synth)[kind][2].get("DependsOn", []))


@pytest.fixture(scope="module")
def longer(synth):
    """The default app with another number of steps."""
    return synth("l4", "training.steps=7")


@pytest.fixture(scope="module")
def unchanged(synth):
    """The default app once more, with a default written out."""
    return synth("l4", "training.steps=200")


# Order

def test_the_job_comes_after_cluster_and_code_and_goes_before_them(synth_l4):
    objects = applied(synth_l4)
    code = {name for name in synth_l4.resources(STACK, MANIFEST) if name.startswith("Code")}
    assert objects["ConfigMap"][0] in code
    assert depends_on(synth_l4, "RayJob") == {objects["RayCluster"][0], *code}


def test_pods_start_once_their_account_has_its_permissions(synth_l4):
    before = depends_on(synth_l4, "RayCluster")
    assert applied(synth_l4)["ServiceAccount"][0] in before
    for kind in ("AWS::EKS::PodIdentityAssociation", "AWS::IAM::Role", "AWS::IAM::Policy"):
        assert set(synth_l4.resources(STACK, kind)) <= before


# Bucket

def test_only_code_knows_the_bucket_and_only_by_its_reference(synth_l4):
    (bucket,) = synth_l4.resources(STACK, "AWS::S3::Bucket")
    train_json = json.loads(applied(synth_l4)["ConfigMap"][1]["data"]["train.json"])
    assert train_json["placement"]["storage"] == f"s3://{bucket}/runs"
    applied_text = json.dumps([manifest for _, manifest, _ in applied(synth_l4).values()])
    assert "<checkpoint" not in applied_text


def test_the_job_may_write_below_runs_and_nowhere_else(synth_l4):
    policy = synth_l4.only(STACK, "AWS::IAM::Policy")["PolicyDocument"]["Statement"]
    writes = [s for s in policy if "s3:PutObject" in s["Action"]]
    assert [s["Resource"]["Fn::Join"][1][-1] for s in writes] == ["/runs/*"]
    actions = {a for s in policy for a in ([s["Action"]] if isinstance(s["Action"], str) else s["Action"])}
    assert not [a for a in actions if "*" in a or not a.startswith("s3:")]


def test_results_outlive_the_stack(synth_l4):
    (bucket,) = synth_l4.resources(STACK, "AWS::S3::Bucket").values()
    assert bucket["DeletionPolicy"] == "Retain"


def test_the_association_is_for_the_account_of_the_pods(synth):
    research = synth("l4", "ray.namespace=research")
    association = research.only(STACK, "AWS::EKS::PodIdentityAssociation")
    account = applied(research)["ServiceAccount"][1]
    assert (association["Namespace"], association["ServiceAccount"]) == (
        account["metadata"]["namespace"], account["metadata"]["name"]) == ("research", "training")


# What a change changes

def test_construct_ids_of_job_and_code_carry_the_hash_of_their_names(synth_l4):
    for kind in ("RayJob", "ConfigMap"):
        name, manifest, _ = applied(synth_l4)[kind]
        assert manifest["metadata"]["name"].rsplit("-", 1)[1] in name


def test_other_training_is_another_job_and_another_bundle(synth_l4, longer):
    for kind in ("RayJob", "ConfigMap"):
        before, after = applied(synth_l4)[kind], applied(longer)[kind]
        assert before[0] != after[0], "another resource: CloudFormation makes it and deletes the old one"
        assert before[1]["metadata"]["name"] != after[1]["metadata"]["name"]


def test_other_training_leaves_everything_else_alone(synth_l4, longer):
    for kind in ("RayCluster", "ServiceAccount"):
        assert applied(synth_l4)[kind] == applied(longer)[kind]
    for stack in ("NetworkStack", "ClusterStack", "PlatformStack"):
        assert synth_l4.templates[stack].to_json() == longer.templates[stack].to_json()


def test_no_change_changes_nothing(synth_l4, unchanged):
    assert synth_l4.outdir != unchanged.outdir
    for stack in synth_l4.templates:
        assert synth_l4.templates[stack].to_json() == unchanged.templates[stack].to_json()
    assert synth_l4.manifests == unchanged.manifests


def test_more_nodes_grow_the_cluster_and_make_another_job(synth_l4, synth):
    more = synth("l4", "gpu.nodes=4")
    assert applied(more)["RayCluster"][0] == applied(synth_l4)["RayCluster"][0]
    assert applied(more)["RayCluster"][1]["spec"]["workerGroupSpecs"][0]["maxReplicas"] == 4
    assert applied(more)["RayJob"][0] != applied(synth_l4)["RayJob"][0]


def test_other_worker_pods_make_another_job_since_they_take_the_running_one_along(synth_l4, synth):
    smaller = synth("l4", "gpu.worker_cpu=32")
    assert applied(smaller)["RayCluster"][1] != applied(synth_l4)["RayCluster"][1]
    assert applied(smaller)["ConfigMap"][0] == applied(synth_l4)["ConfigMap"][0]
    assert applied(smaller)["RayJob"][0] != applied(synth_l4)["RayJob"][0]


# What a user is told

def test_outputs_name_bucket_job_and_the_commands_to_watch(synth_l4):
    outputs = {name: o["Value"] for name, o in synth_l4.templates[STACK].to_json()["Outputs"].items()}
    job = applied(synth_l4)["RayJob"][1]["metadata"]["name"]
    (bucket,) = synth_l4.resources(STACK, "AWS::S3::Bucket")
    assert outputs["Bucket"] == {"Ref": bucket}
    assert (outputs["Namespace"], outputs["Job"]) == ("ray", job)
    # The submitter is a Job of the RayJob's name, and follows the log.
    assert outputs["Watch"] == f"kubectl --namespace ray logs --follow job/{job}"
    assert outputs["Status"].endswith(f"describe rayjob {job}")


def test_the_template_is_far_from_cloudformations_limit(synth_l4):
    assert len(json.dumps(synth_l4.templates[STACK].to_json())) < 500_000
