"""The app as the CDK command line runs it."""

import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from aws_cdk import Stack
from aws_cdk.assertions import Annotations, Match
from cfnlint.api import ManualArgs, lint

from settings import load_settings

ROOT = Path(__file__).resolve().parent.parent
IDS = ["NetworkStack", "ClusterStack", "PlatformStack", "TrainingStack"]
APPS = ["synth_l4", "synth_h100", "synth_changed", "synth_block", "synth_reserved"]


def run_app(outdir: Path, **context: str) -> subprocess.CompletedProcess:
    """app.py as the command line starts it, without the command line."""
    settings = json.loads((ROOT / "cdk.json").read_text())["context"]
    # The contents of assets are not looked at here.
    context_json = json.dumps({**settings, "aws:cdk:disable-asset-staging": True, **context})
    # The CDK's validation takes most of a synthesis and is asked of the `synth_…` fixtures.
    env = {**os.environ, "CDK_OUTDIR": str(outdir), "CDK_CONTEXT_JSON": context_json, "CDK_VALIDATION": "false"}
    return subprocess.run([sys.executable, "app.py"], cwd=ROOT, env=env, capture_output=True, text=True,
                          timeout=120)


def test_stacks_have_the_ids_that_people_type_and_names_of_the_settings(synth_l4, synth_h100):
    assert list(synth_l4.stacks) == IDS
    assert [s.stack_name for s in synth_l4.stacks.values()] == [
        "eagleray-" + i.removesuffix("Stack").lower() for i in IDS]
    assert synth_h100.stacks["NetworkStack"].stack_name == "eagleray-h100-network"


def test_each_stack_stands_on_the_one_before_so_that_deletion_goes_backwards(synth_l4):
    artifacts = json.loads((synth_l4.outdir / "manifest.json").read_text())["artifacts"]
    for before, after in itertools.pairwise(IDS):
        assert before in artifacts[after]["dependencies"]
        assert after not in artifacts[before].get("dependencies", [])


def test_kubernetes_objects_lie_in_the_output_folder_and_only_those_of_this_synth(tmp_path):
    stale = tmp_path / "manifests" / "99-rayjob-of-yesterday.yaml"
    stale.parent.mkdir()
    stale.write_text("kind: RayJob\n")
    assert run_app(tmp_path).returncode == 0
    files = sorted(path.name for path in stale.parent.iterdir())
    assert stale.name not in files
    assert [name for name in files if "-rayjob-" in name]
    assert [name for name in files if "-daemonset-" in name]


@pytest.mark.parametrize("fixture", APPS)
def test_synthesis_has_nothing_to_warn_of(request, fixture):
    synth = request.getfixturevalue(fixture)
    for stack in synth.stacks.values():
        assert isinstance(stack, Stack)
        annotations = Annotations.from_stack(stack)
        assert not annotations.find_warning("*", Match.any_value())
        assert not annotations.find_error("*", Match.any_value())
    assert not json.loads((synth.outdir / "validation-report.json").read_text())["pluginReports"]


@pytest.mark.parametrize("fixture", APPS)
def test_cfn_lint_finds_nothing_in_the_templates(request, fixture):
    region = {"include_experimental": True, "regions": ["us-east-2"]}
    for template in request.getfixturevalue(fixture).templates.values():
        found = lint(json.dumps(template.to_json()), config=ManualArgs(**region))
        # The CDK itself names the dependency of a Lambda on its role twice.
        makers = ("KubectlProvider", "'GateRole", "'AWS679f53fac002430cb0da5b7982bd")
        twice = [m for m in found if m.rule.id == "W3005" and any(name in m.message for name in makers)]
        ours = [str(m) for m in found if m not in twice]
        assert not ours


@pytest.mark.parametrize(("context", "expected"), [
    ({"set": "gpu.nodez=3"}, ["set=gpu.nodez=3: unknown setting gpu.nodez; did you mean gpu.nodes?"]),
    ({"set": "gpu.nodes=0"}, ["set=gpu.nodes=0: gpu.nodes"]),
    ({"set": "gpu.nodes=0,network.zone=eu-west-1a"}, ["gpu.nodes"]),
    ({"config": "h200"}, ["config=h200: no such config; use capacity-block, h100, l4, local"]),
])
def test_a_wrong_setting_is_one_clear_error(tmp_path, context, expected):
    done = run_app(tmp_path / "cdk.out", **context)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    for text in expected:
        assert text in done.stderr
    assert not (tmp_path / "cdk.out").exists() or not list((tmp_path / "cdk.out").glob("*.template.json"))


def test_config_and_set_reach_the_templates(tmp_path):
    done = run_app(tmp_path, config="h100", set="name=mine,gpu.nodes=4")
    assert done.returncode == 0, done.stderr
    artifacts = json.loads((tmp_path / "manifest.json").read_text())["artifacts"]
    assert artifacts["ClusterStack"]["properties"]["stackName"] == "mine-cluster"
    resources = json.loads((tmp_path / "ClusterStack.template.json").read_text())["Resources"].values()
    group = next(r["Properties"] for r in resources if r["Type"] == "AWS::EKS::Nodegroup"
                 and r["Properties"]["InstanceTypes"] == ["p5.48xlarge"])
    assert group["ScalingConfig"]["MaxSize"] == 4


@pytest.mark.slow
def test_two_cdk_synths_at_once_do_not_disturb_each_other(tmp_path):
    cdk = shutil.which("cdk", path=str(Path(sys.executable).parent))
    assert cdk, "the CDK command line comes with requirements.txt"
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    running = {config: subprocess.Popen(
        [cdk, "synth", "-q", "-c", f"config={config}", "-o", str(tmp_path / config)],
        cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for config in ("l4", "h100")}
    for config, process in running.items():
        output, _ = process.communicate(timeout=240)
        assert process.returncode == 0, output
        assert "WARNING" not in output
        artifacts = json.loads((tmp_path / config / "manifest.json").read_text())["artifacts"]
        assert artifacts["NetworkStack"]["properties"]["stackName"] == f"{load_settings(config).name}-network"
