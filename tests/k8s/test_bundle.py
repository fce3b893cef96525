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
    assert set(code["data"]) == expected | {"train.json"}
    assert code["data"]["training.gpus.json"] == (ROOT / "training" / "gpus.json").read_text()


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
    job = TrainJob.model_validate_json(code["data"]["train.json"])
    assert (job.placement.nodes, job.placement.workers_per_node) == (2, 4)
    assert job.placement.storage == "s3://<checkpoint-bucket>/runs"
    assert "\n  " in code["data"]["train.json"], "a person reads it, too"


def test_a_bundle_never_changes_in_place(code):
    assert code["immutable"] is True
    assert CodeBundle("x", {"a.py": "1"}).name != CodeBundle("x", {"a.py": "2"}).name
    assert CodeBundle("x", {"a.py": "1"}).name != CodeBundle("x", {"b.py": "1"}).name
    assert CodeBundle("x", {"a.py": "1", "b.py": "2"}).name == CodeBundle("x", {"b.py": "2", "a.py": "1"}).name


def test_the_mount_gives_every_file_its_path_back(code, submitter_pod, tmp_path):
    (volume,) = submitter_pod["volumes"]
    assert volume["configMap"]["name"] == code["metadata"]["name"]
    assert {item["key"] for item in volume["configMap"]["items"]} == set(code["data"])
    for item in volume["configMap"]["items"]:
        path = tmp_path / item["path"]
        path.parent.mkdir(exist_ok=True)
        path.write_text(code["data"][item["key"]])
    # The package as mounted is importable, from the mount and not from this checkout.
    program = "import training.config, sys; print(training.config.__file__)"
    found = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True,
                           timeout=60, check=True)
    assert found.stdout.strip() == str(tmp_path / "training" / "config.py")


def test_names_that_clash_without_slashes_are_refused():
    with pytest.raises(ValueError, match=r"a/b\.py"):
        CodeBundle("x", {"a/b.py": "1", "a.b.py": "2"})


@pytest.mark.parametrize(("size", "char"), [(300_000, "a"), (2_000_000, "a"), (50_000, "<")])
def test_a_bundle_too_large_to_apply_names_its_largest_file(size, char):
    # 50,000 times < is small for a ConfigMap, but kubectl writes each as \u003c into its annotation.
    with pytest.raises(BundleTooLargeError, match=rf"training/big\.py \({size} bytes\)"):
        CodeBundle("x", {"training/big.py": char * size, "training/a.py": "1"})


def test_the_bundle_has_room_to_grow(code):
    # 255 KiB is the end: what is left is for a train.json with a model written inline
    assert len(json.dumps(code)) < 250_000
