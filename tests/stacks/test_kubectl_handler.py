"""The Lambda that applies our manifests, run from the synthesized asset with stubs for aws, helm, kubectl.

What it shows: the command lines, and that the objects arrive whole. Not that a cluster would take them.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

MANIFEST = "Custom::AWSCDK-EKS-KubernetesResource"
CHART = "Custom::AWSCDK-EKS-HelmChart"
BUCKET = "eagleray-results-1a2b3c"

STUB = f"""#!{sys.executable}
import json, os, sys
from pathlib import Path
out = Path(os.environ["TEST_OUTDIR"])
name, arguments = Path(sys.argv[0]).name, sys.argv[1:]
flag = {{"kubectl": "-f", "helm": "--values"}}.get(name)
read = Path(arguments[arguments.index(flag) + 1]).read_text() if flag in arguments else None
with (out / "calls.jsonl").open("a") as log:
    log.write(json.dumps({{"command": [name, *arguments], "read": read}}) + "\\n")
"""

RUN = "import json, sys; from index import handler; handler(json.loads(sys.stdin.read()), None)"


@pytest.fixture(scope="module")
def handler_folder(synth_l4):
    """The handler's sources, as the asset manifest of the synthesized app names them."""
    assets = json.loads((synth_l4.outdir / "ClusterStack.assets.json").read_text())
    sources = [Path(f["source"]["path"]) for f in assets["files"].values()]
    folders = [synth_l4.outdir / s for s in sources if (synth_l4.outdir / s / "apply" / "__init__.py").is_file()]
    assert folders, "no asset of the cluster stack has the kubectl handler"
    return folders[0]


@pytest.fixture
def run(handler_folder, tmp_path):
    """run(request, kind, properties): the commands that the handler runs, with the file that each one read."""
    stubs = tmp_path / "bin"
    stubs.mkdir()
    for name in ("aws", "helm", "kubectl"):
        (stubs / name).write_text(STUB)
        (stubs / name).chmod(0o755)

    def run(request, kind, properties):
        log = tmp_path / "calls.jsonl"
        log.unlink(missing_ok=True)
        event = {"RequestType": request, "ResourceType": kind, "ResourceProperties": as_lambda_gets(properties)}
        env = {**os.environ, "PATH": f"{stubs}:{os.environ['PATH']}", "TEST_OUTDIR": str(tmp_path)}
        subprocess.run([sys.executable, "-c", RUN], input=json.dumps(event), cwd=handler_folder, env=env, text=True,
                       capture_output=True, timeout=60, check=True)
        return [json.loads(line) for line in log.read_text().splitlines()]
    return run


def as_lambda_gets(value):
    """Properties with references resolved and, as CloudFormation sends them, every scalar as text."""
    if isinstance(value, dict):
        if "Fn::ImportValue" in value:
            return "eagleray"
        if "Ref" in value:
            return BUCKET
        if "Fn::Join" in value:
            return "".join(str(as_lambda_gets(part)) for part in value["Fn::Join"][1])
        return {key: as_lambda_gets(below) for key, below in value.items()}
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else value


def documents(text):
    """The objects of a stream of JSON documents."""
    found, decoder = [], json.JSONDecoder()
    while text:
        document, end = decoder.raw_decode(text)
        found.append(document)
        text = text[end:].lstrip()
    return found


def manifests_of(synth):
    """Properties of every resource that applies objects."""
    return [r["Properties"] for stack in ("PlatformStack", "TrainingStack")
            for r in synth.resources(stack, MANIFEST).values()]


def with_bucket(manifest):
    return json.loads(json.dumps(manifest).replace("<checkpoint-bucket>", BUCKET))


@pytest.mark.parametrize(("request_type", "verb"), [("Create", "apply"), ("Update", "apply"), ("Delete", "delete")])
def test_kubectl_gets_every_object_as_in_its_file(synth_l4, run, request_type, verb):
    arrived = []
    for properties in manifests_of(synth_l4):
        login, kubectl = run(request_type, MANIFEST, properties)
        assert login["command"][:5] == ["aws", "eks", "update-kubeconfig", "--name", "eagleray"]
        program, said, *options = kubectl["command"]
        assert (program, said) == ("kubectl", verb)
        assert [o for o in options if o.startswith("-")] == ["--kubeconfig", "-f"], "validated, and nothing pruned"
        arrived += documents(kubectl["read"])
    expected = [with_bucket(m) for m in synth_l4.manifests]
    assert sorted(arrived, key=json.dumps) == sorted(expected, key=json.dumps)


def test_helm_installs_the_operator_and_waits_for_it(synth_l4, run):
    chart = synth_l4.only("PlatformStack", CHART, Release="kuberay-operator")
    _, helm = run("Create", CHART, chart)
    options = helm["command"]
    assert options[:4] == ["helm", "upgrade", "kuberay-operator", "kuberay-operator"]
    assert {"--install", "--wait", "--atomic"} <= set(options)
    assert "--create-namespace" not in options
    for flag, value in [("--repo", "https://ray-project.github.io/kuberay-helm/"), ("--version", "1.7.0"),
                        ("--namespace", "kuberay-operator"), ("--timeout", "300s")]:
        assert options[options.index(flag) + 1] == value
    assert json.loads(helm["read"])["watchNamespace"] == ["ray"]


def test_helm_uninstalls_what_it_installed(synth_l4, run):
    _, helm = run("Delete", CHART, synth_l4.only("PlatformStack", CHART, Release="kuberay-operator"))
    assert helm["command"][:3] == ["helm", "uninstall", "kuberay-operator"]
    assert helm["command"][helm["command"].index("--namespace") + 1] == "kuberay-operator"
