"""Manifests on disk: readable, in order, and nothing of an earlier synth among them."""

import pytest
import yaml

from k8s.files import write_manifests

CODE = 'def f():\n    """Says: hello, ½."""\n    return {"a": 1}\n'


def config_map(name, **data):
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def test_one_file_an_object_in_the_order_of_applying(tmp_path):
    write_manifests(tmp_path, [config_map("b"), config_map("a")])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["01-configmap-b.yaml", "02-configmap-a.yaml"]


def test_files_of_an_earlier_synth_are_gone_and_other_files_stay(tmp_path):
    (tmp_path / "09-rayjob-old.yaml").write_text("kind: RayJob\n")
    (tmp_path / "notes.txt").write_text("mine\n")
    write_manifests(tmp_path, [config_map("a")])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["01-configmap-a.yaml", "notes.txt"]


def test_code_is_readable_as_code(tmp_path):
    write_manifests(tmp_path / "new", [config_map("a", code=CODE)])
    text = (tmp_path / "new" / "01-configmap-a.yaml").read_text(encoding="utf-8")
    assert "  code: |\n    def f():\n        \"\"\"Says: hello, ½.\"\"\"\n" in text


@pytest.mark.parametrize("value", ["", "a", CODE, "no newline at end\nhere", "trailing space \nx\n", "\n\n", "1.0",
                                   "true", "a: b", "x" * 500, "\ttab\n", "0x10", "~"])
def test_what_is_read_back_is_what_was_written(tmp_path, value):
    same = {"twice": "over"}
    manifest = {**config_map("a", value=value), "first": same, "second": same}
    write_manifests(tmp_path, [manifest])
    text = (tmp_path / "01-configmap-a.yaml").read_text(encoding="utf-8")
    assert yaml.safe_load(text) == manifest
    assert "&id" not in text
