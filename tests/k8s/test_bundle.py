"""The code bundle: all of the package, nothing else, under a name that changes with it."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from k8s.bundle import BundleTooLargeError, CodeBundle, package_files, without_comments
from training.config import TrainJob

ROOT = Path(__file__).resolve().parents[2]


def test_every_source_and_data_file_of_the_package_is_in_the_bundle(code):
    package = [path for path in (ROOT / "training").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    expected = {path.relative_to(ROOT).as_posix().replace("/", ".") for path in package}
    assert {"training.train.py", "training.config.py"} < expected
    assert set(code) == expected | {"train.json"}
    assert code["training.gpus.json"] == (ROOT / "training" / "gpus.json").read_text()


def statements(source):
    """Every node of a program and its line, a text that is a statement of its own made empty."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                node.value = ast.Constant("")
    return [(ast.dump(node), getattr(node, "lineno", None)) for node in ast.walk(tree)
            if isinstance(node, ast.stmt)]


@pytest.mark.parametrize("path", sorted((ROOT / "training").rglob("*.py")), ids=lambda path: path.name)
def test_the_pods_run_the_same_statements_in_the_same_lines(path):
    source = path.read_text()
    assert statements(without_comments(source)) == statements(source)


def test_comments_and_docstrings_stay_at_home():
    source = '''"""About
it."""
X = """a text  # that is a value
"""  # why
class A:  # "quoted"
    """Of A."""
    x: str = "# kept"
    """Of x."""  # both

    def f(self):
        "only this"
'''
    assert without_comments(source) == (
        '""\n\nX = """a text  # that is a value\n"""\nclass A:\n    ""\n    x: str = "# kept"\n    ""\n\n'
        '    def f(self):\n        ""\n')


def test_an_empty_file_is_kept(tmp_path):
    # Without its __init__.py a package would be another kind of package.
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "__init__.py").touch()
    assert package_files(tmp_path / "training") == {"training/__init__.py": ""}


def test_compiled_files_and_notes_stay_at_home(tmp_path):
    package = tmp_path / "training"
    (package / "__pycache__").mkdir(parents=True)
    (package / "__pycache__" / "a.pyc").write_bytes(b"\0\1")
    (package / "deep").mkdir()
    for name in ("a.py", "notes.md", "data.json", "deep/b.py"):
        (package / name).write_text("x")
    assert list(package_files(package)) == ["training/a.py", "training/data.json", "training/deep/b.py"]


def test_train_json_is_the_job_of_the_settings(code):
    job = TrainJob.model_validate_json(code["train.json"])
    assert (job.placement.nodes, job.placement.workers_per_node) == (2, 4)
    assert job.placement.storage == "s3://<checkpoint-bucket>/runs"
    assert "\n  " in code["train.json"], "a person reads it, too"


def names(files):
    return {part.name for part in CodeBundle("x", files).parts}


def test_a_bundle_never_changes_in_place(bundle_parts):
    assert all(part["immutable"] is True for part in bundle_parts)
    assert not names({"t/a.py": "1"}) & names({"t/a.py": "2"})
    assert not names({"t/a.py": "1"}) & names({"t/b.py": "1"})
    assert names({"t/a.py": "1", "t/b.py": "2"}) == names({"t/b.py": "2", "t/a.py": "1"})


def test_other_settings_keep_the_codes_config_map():
    before, after = (names({"t/a.py": "1", "train.json": text}) for text in ("{}", "[]"))
    assert (len(before), len(before & after)) == (2, 1)
    (kept,) = before & after
    assert kept.startswith("x-code-")


def test_the_mount_gives_every_file_its_path_back(bundle_parts, submitter_pod, tmp_path):
    (volume,) = submitter_pod["volumes"]
    sources = [source["configMap"] for source in volume["projected"]["sources"]]
    parts = {part["metadata"]["name"]: part["data"] for part in bundle_parts}
    assert {source["name"] for source in sources} == set(parts)
    for source in sources:
        data = parts[source["name"]]
        assert {item["key"] for item in source["items"]} == set(data)
        for item in source["items"]:
            path = tmp_path / item["path"]
            path.parent.mkdir(exist_ok=True)
            path.write_text(data[item["key"]])
    # The package as mounted is importable, from the mount and not from this checkout.
    program = "import training.config, sys; print(training.config.__file__)"
    found = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True,
                           timeout=60, check=True)
    assert found.stdout.strip() == str(tmp_path / "training" / "config.py")


def test_names_that_clash_without_slashes_are_refused():
    with pytest.raises(ValueError, match=r"a/b\.py"):
        CodeBundle("x", {"a/b.py": "1", "a.b.py": "2"})


@pytest.mark.parametrize(("size", "char"), [(140_000, "a"), (30_000, "<")])
def test_a_file_too_large_to_apply_is_named(size, char):
    # 30,000 times < is small for a ConfigMap, but kubectl writes each as \u003c into its annotation.
    with pytest.raises(BundleTooLargeError, match=rf"training/big\.py \({size} bytes\)"):
        CodeBundle("x", {"training/big.py": char * size, "training/a.py": "1"})


def test_a_package_too_large_for_a_template_names_its_largest_file():
    many = {f"training/m{n}.py": "a" * 100_000 for n in range(8)}
    with pytest.raises(BundleTooLargeError, match=r"training/big\.py"):
        CodeBundle("x", {**many, "training/big.py": "a" * 110_000})


def test_every_part_can_be_applied(bundle_parts):
    # kubectl's annotation and the event of CloudFormation's Lambda take 256 KiB, what is quoted in them longer
    assert max(len(json.dumps(json.dumps(part))) for part in bundle_parts) < 200_000
