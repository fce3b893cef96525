"""`eagleray check` on files from anybody's hands: exit codes, one clear line, no harm."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from k8s.rules import Manifest, check
from k8s.rules.nodes import around_files
from ops import cli
from ops.check_command import findings
from ops.errors import NothingToDoError

CODE = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "code"}, "data": {"a": "b"}}
BAD = {**CODE, "datum": {"a": "b"}}


def run(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["eagleray", "check", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    shown = capsys.readouterr()
    return stop.value.code or 0, shown.out, shown.err


def written(path, *objects):
    path.write_text(yaml.safe_dump_all(objects))
    return path


def test_a_good_file_says_nothing(monkeypatch, capsys, tmp_path):
    assert run(monkeypatch, capsys, written(tmp_path / "a.yaml", CODE)) == (0, "", "")
    assert run(monkeypatch, capsys, "--json", tmp_path / "a.yaml") == (0, "[]\n", "")


def test_a_finding_is_one_line_and_the_exit_code_1(monkeypatch, capsys, tmp_path):
    code, out, _ = run(monkeypatch, capsys, written(tmp_path / "a.yaml", BAD))
    assert code == 1
    assert out == "core-schema  ConfigMap/code  datum: is no field that Kubernetes knows; meant is perhaps data\n"


def test_findings_as_json(monkeypatch, capsys, tmp_path):
    file = written(tmp_path / "a.yaml", BAD)
    code, out, _ = run(monkeypatch, capsys, "--json", file)
    (found,) = json.loads(out)
    assert code == 1
    assert found == {"rule": "core-schema", "file": str(file), "object": "ConfigMap/code", "field": "datum",
                     "problem": "is no field that Kubernetes knows", "mend": "meant is perhaps data"}


def test_help_has_an_example_and_the_exit_codes(monkeypatch, capsys):
    code, out, _ = run(monkeypatch, capsys, "--help")
    assert code == 0
    assert "Example: eagleray check" in out
    assert "Exit codes" in out


def test_many_objects_in_many_shapes(tmp_path):
    written(tmp_path / "two.yaml", CODE, None, BAD)
    (tmp_path / "list.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [
        {**BAD, "metadata": {"name": "in-list"}}]}))
    (tmp_path / "array.yml").write_text(json.dumps([{**BAD, "metadata": {"name": "in-array"}}]))
    (tmp_path / "package.json").write_text('{"name": "not ours"}')
    (tmp_path / "values.yaml").write_text("replicas: 3\n")
    (tmp_path / "README.md").write_text("not YAML: [")
    found = [f for f in findings([str(tmp_path)]) if f.rule == "core-schema"]
    assert sorted(f.object for f in found) == ["ConfigMap/code", "ConfigMap/in-array", "ConfigMap/in-list"]


def test_a_cdk_out_is_checked_on_its_own_nodes(synth_l4, monkeypatch, capsys):
    assert run(monkeypatch, capsys, synth_l4.outdir) == (0, "", "")


def test_a_cdk_out_with_a_pod_too_large_for_its_nodes(synth_l4, tmp_path):
    folder = tmp_path / "cdk.out"
    (folder / "manifests").mkdir(parents=True)
    (folder / "cdk.out").write_text("{}")
    for body in synth_l4.manifests:
        if body["kind"] == "RayCluster":
            amounts = {"cpu": "40", "memory": "160Gi", "nvidia.com/gpu": "8", "vpc.amazonaws.com/efa": "1"}
            worker = body["spec"]["workerGroupSpecs"][0]
            container = worker["template"]["spec"]["containers"][0]
            changed = {**container, "resources": {"requests": amounts, "limits": amounts}}
            pod = {**worker["template"]["spec"], "containers": [changed]}
            body = {**body, "spec": {**body["spec"], "workerGroupSpecs": [{**worker, "template": {"spec": pod}}]}}
        written(folder / "manifests" / f"{body['kind']}-{body['metadata']['name']}.yaml", body)
    (folder / "ClusterStack.template.json").write_text(
        (synth_l4.outdir / "ClusterStack.template.json").read_text())
    found = {f.rule: str(f) for f in findings([str(folder)])}
    assert "asks for 8, and a g6.12xlarge gives 4" in found["node-fit"]


def test_the_app_stops_at_a_manifest_that_would_not_work(synth_l4):
    from stacks.manifest_check import wrong_manifests

    assert wrong_manifests(synth_l4.outdir, synth_l4.manifests) is None
    broken = [{**m, "spec": {**m["spec"], "submissionMode": "K8sJob"}} if m["kind"] == "RayJob" else m
              for m in synth_l4.manifests]
    assert "submission-mode  RayJob/ray/eagleray-" in str(wrong_manifests(synth_l4.outdir, broken))


def test_a_key_that_is_there_twice(tmp_path):
    (tmp_path / "a.yaml").write_text(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {a: b}\ndata: {}\n")
    (tmp_path / "b.json").write_text(
        '{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "b"}, "data": {}, "data": {}}')
    assert [(f.rule, f.object, f.field) for f in findings([str(tmp_path)])] == [
        ("repeated-key", "a.yaml", "data"), ("repeated-key", "b.json", "data")]
    assert "line 5" in str(findings([str(tmp_path / "a.yaml")])[0])


_LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True))

# What is handed over, and what the one line says.
HOSTILE = {
    "an alias bomb": (_LAUGHS.encode(), "aliases unfold into"),
    "an alias of itself": (b"apiVersion: v1\nkind: &k [*k]\n", "contains itself"),
    "a tower of brackets": (b"a: " + b"[" * 50_000, "nest"),
    "a tower of blocks": ("".join(f"{' ' * i}a:\n" for i in range(500)).encode(), "nested deeper than"),
    "code in a tag": (b"!!python/object/apply:os.system ['touch pwned']", "no YAML"),
    "code in a value": (b"kind: !!python/name:os.system\napiVersion: v1\n", "no YAML"),
    "a private tag": (b"kind: !Ref x\napiVersion: v1\n", "no YAML"),
    "an open quote": (b'kind: "RayJob\n', "no YAML in line"),
    "a template of Helm": (b"kind: {{ .Values.kind }}\n", "no YAML in line"),
    "UTF-16": ("kind: RayJob".encode("utf-16"), "not UTF-8"),
    "Latin-1": (b"kind: caf\xe9\n", "not UTF-8"),
    "a NUL": (b"kind: a\x00b\n", "no YAML"),
    "an archive": (b"PK\x03\x04\x14\x00\x00\x00\x08\x00\xff\xfe", "not UTF-8"),
    "a long number": (b"kind: RayJob\napiVersion: v1\nmetadata: {name: " + b"9" * 5000 + b"}\n", "digits"),
    "an unhashable key": (b"? [a]\n: b\n", "no YAML"),
    "text only": (b"just words\n", "no object"),
    "nothing": (b"", "holds no Kubernetes object"),
    "other YAML": (b"replicas: 3\n", "holds no Kubernetes object"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_file_is_one_clear_line(monkeypatch, capsys, tmp_path, what):
    data, says = HOSTILE[what]
    monkeypatch.chdir(tmp_path)
    Path("evil.yaml").write_bytes(data)
    code, out, err = run(monkeypatch, capsys, "evil.yaml")
    assert (code, out) == (2, "")
    assert "evil.yaml" in err
    assert says in err
    assert len(err.splitlines()) == 1
    assert not Path("pwned").exists()


def test_hostile_json(tmp_path):
    for data, says in [(b"[" * 100_000, "nested too deeply"), (b"{", "no JSON in line 1"), (b"\xff", "not UTF-8")]:
        (tmp_path / "evil.json").write_bytes(data)
        with pytest.raises(NothingToDoError, match=says):
            findings([str(tmp_path / "evil.json")])


def test_a_file_of_any_size_is_not_read_to_its_end(tmp_path):
    with (tmp_path / "huge.yaml").open("wb") as file:
        file.truncate(2**40)  # a terabyte of nothing
    with pytest.raises(NothingToDoError, match="larger than 16 MiB"):
        findings([str(tmp_path / "huge.yaml")])


def test_names_that_lead_nowhere(tmp_path):
    for name, says in [("missing", "no such file"), ("a\0b", "null byte|no such file"), ("x" * 5000, "too long")]:
        with pytest.raises(NothingToDoError, match=says):
            findings([str(tmp_path / name)])
    with pytest.raises(NothingToDoError, match=r"holds no \*\.yaml"):
        findings([str(tmp_path)])
    (tmp_path / "cdk.out").write_text("{}")
    with pytest.raises(NothingToDoError, match="cdk synth"):
        findings([str(tmp_path)])


def test_a_folder_does_not_lead_out_of_itself(tmp_path):
    secret = written(tmp_path / "secret.yaml", BAD)
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "link.yaml").symlink_to(secret)
    with pytest.raises(NothingToDoError, match="leads out of"):
        findings([str(inside)])
    (inside / "link.yaml").unlink()
    (inside / "loop").symlink_to(inside)
    written(inside / "a.yaml", CODE)
    assert findings([str(inside)]) == []


def test_a_pipe_in_a_folder_is_not_waited_for(tmp_path):
    import os

    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(NothingToDoError, match="neither a file nor a folder"):
        findings([str(tmp_path)])


def test_markup_and_escapes_are_shown_as_they_are(monkeypatch, capsys, tmp_path):
    file = written(tmp_path / "a.yaml", {**CODE, "[red]x[/]": "\x1b[2J"})
    _, out, _ = run(monkeypatch, capsys, file)
    assert "[red]x[/]" in out
    assert "\x1b" not in out


# Anything that YAML can hold, in the places where rules look.
_SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
_KEYS = st.sampled_from([
    "metadata", "name", "namespace", "labels", "spec", "containers", "env", "value", "valueFrom",
    "resources", "limits", "requests", "nvidia.com/gpu", "vpc.amazonaws.com/efa", "memory", "volumes",
    "configMap", "volumeMounts", "template", "headGroupSpec", "workerGroupSpecs", "rayStartParams",
    "clusterSelector", "ray.io/cluster", "runtimeEnvYAML", "submitterPodTemplate", "deletionStrategy",
    "deletionRules", "condition", "tolerations", "selector", "ports", "matchLabels", "replicas",
    "rayClusterSpec", "entrypoint", "autoscalerOptions", "authOptions", "items", "image",
])
_VALUES = st.recursive(
    _SCALARS, lambda below: st.lists(below, max_size=3) | st.dictionaries(_KEYS, below, max_size=5), max_leaves=25
)
_KINDS = [("ray.io/v1", "RayJob"), ("ray.io/v1", "RayCluster"), ("ray.io/v1", "RayService"), ("v1", "Pod"),
          ("ray.io/v1", "RayCronJob"), ("apps/v1", "DaemonSet"), ("v1", "Service"), ("v1", "ConfigMap"),
          ("networking.k8s.io/v1", "Ingress"), ("networking.k8s.io/v1", "NetworkPolicy"), ("x/v1", "HTTPRoute")]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.sampled_from(_KINDS), st.dictionaries(_KEYS, _VALUES, max_size=4)), max_size=3))
def test_no_manifest_breaks_the_rules_themselves(drawn):
    objects = [{"apiVersion": version, "kind": kind, **fields} for (version, kind), fields in drawn]
    for finding in check([Manifest(body) for body in objects], around_files()):
        assert str(finding)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow,
                                                                  HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_value_anywhere_in_our_manifests_breaks_the_rules(synth_l4, data):
    from k8s.rules.nodes import around_app

    bodies = json.loads(json.dumps([m for m in synth_l4.manifests if m["kind"] != "ConfigMap"]))
    where = data.draw(st.sampled_from(bodies))
    for _ in range(data.draw(st.integers(1, 12))):
        keys = list(where) if isinstance(where, dict) else list(range(len(where)))
        key = data.draw(st.sampled_from(keys))
        below = where[key]
        if not isinstance(below, dict | list) or not below:
            break
        where = below
    else:
        key = data.draw(st.sampled_from(list(where) if isinstance(where, dict) else list(range(len(where)))))
    where[key] = data.draw(_VALUES)
    check([Manifest(body) for body in bodies], around_app(synth_l4.outdir))


@given(st.binary(max_size=300) | st.text(max_size=200).map(str.encode))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_manifests_or_one_line(tmp_path, data):
    file = tmp_path / "any.yaml"
    file.write_bytes(data)
    try:
        said = [str(finding) for finding in findings([str(file)])]
    except NothingToDoError as error:
        said = [str(error)]
    assert all(len(line.splitlines()) == 1 for line in said)


def test_the_command_loads_neither_cdk_nor_torch_nor_ray(tmp_path):
    file = written(tmp_path / "a.yaml", CODE)
    program = ("import sys; from ops import cli\nsys.argv = ['eagleray', 'check', sys.argv[1]]\n"
               "try: cli.main()\nexcept SystemExit: pass\n"
               "heavy = ('aws_cdk', 'cdk8s', 'torch', 'ray', 'boto3', 'transformers')\n"
               "print([m for m in heavy if m in sys.modules])")
    done = subprocess.run([sys.executable, "-c", program, str(file)], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr
