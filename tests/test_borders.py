"""Which room may import which: the borders that keep the house easy to change."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
OURS = {"app", "settings", "stacks", "eagleray", "k8s", "training", "ops"}
PACKAGES = {"aws_cdk", "cdk8s", "cdk8s_plus_28", "constructs", "torch", "ray", "transformers"}
PACKAGES |= {"boto3", "kubernetes"}

# For each room: our own rooms and the watched packages that it may import.
MAY_IMPORT = {
    "settings": {"training.config", "training.topology", "training.shape", "eagleray.catalog"},
    "stacks": {"settings", "eagleray", "k8s", "training.config", "training.metric_names", "aws_cdk",
               "constructs"},
    "constructs/eagleray": {"eagleray", "aws_cdk", "constructs"},
    # A Lambda as well as a library: what Lambda's Python runtime brings, and nothing more.
    "constructs/eagleray/gate": {"eagleray.gate", "boto3", "botocore"},
    "k8s": {"k8s", "cdk8s", "cdk8s_plus_28", "constructs", "training.config", "training.metric_names",
            "eagleray.catalog"},
    "training": {"training", "torch", "ray", "transformers"},
    "ops": {"ops", "settings", "k8s", "training", "eagleray.catalog", "eagleray.gate", "boto3", "kubernetes", "ray",
            "transformers"},
}


def imports(path: Path) -> set[str]:
    """Modules that a file imports, `from a import b` counted as a.b."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def files(room: str) -> list[Path]:
    """Python files of a room, without those of a room within it."""
    inner = [ROOT / other for other in MAY_IMPORT if other.startswith(f"{room}/")]
    return [path for path in sorted((ROOT / room).rglob("*.py")) if not set(inner) & set(path.parents)]


def within(module: str, allowed: set[str]) -> bool:
    return any(module == a or module.startswith(a + ".") for a in allowed)


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_imports_only_what_it_may(room):
    allowed = MAY_IMPORT[room] | {room}
    trespasses = {
        f"{path.relative_to(ROOT)} imports {module}"
        for path in files(room)
        for module in imports(path)
        if module.split(".")[0] in OURS | PACKAGES and not within(module, allowed)
    }
    assert files(room)
    assert not trespasses


def test_app_is_only_a_list_of_stacks():
    lines = (ROOT / "app.py").read_text().splitlines()
    assert len(lines) <= 60
    assert not [m for m in imports(ROOT / "app.py") if m.split(".")[0] in {"torch", "ray", "ops", "training"}]


def test_the_pypi_package_constructs_is_not_shadowed():
    assert not (ROOT / "constructs" / "__init__.py").exists()
    import constructs

    assert constructs.Construct
    assert not str(constructs.__file__).startswith(str(ROOT / "constructs"))


# What the pods run must not need more than the image has.
IMAGE_HAS = {"torch", "ray", "transformers", "pydantic", "numpy", "pyarrow", "huggingface_hub", "safetensors",
             "datasets", "tokenizers", "triton"}


def test_training_needs_nothing_that_the_image_lacks():
    outside = {
        f"{path.relative_to(ROOT)} imports {module}"
        for path in files("training")
        for module in imports(path)
        if module.split(".")[0] not in sys.stdlib_module_names | IMAGE_HAS | {"training"}
    }
    assert not outside


def test_the_gate_needs_nothing_that_lambdas_python_lacks():
    outside = {
        f"{path.relative_to(ROOT)} imports {module}"
        for path in files("constructs/eagleray/gate")
        for module in imports(path)
        if not within(module, {"eagleray.gate", "boto3", "botocore", *sys.stdlib_module_names})
    }
    assert not outside


def test_the_environment_is_read_only_at_the_doors():
    doors = {"training/train.py"}
    readers = {
        str(path.relative_to(ROOT))
        for room in MAY_IMPORT
        if room != "ops"
        for path in files(room)
        if any(m.startswith("os.environ") or m == "os.getenv" for m in imports(path) | _attributes(path))
    }
    assert readers <= doors


def _attributes(path: Path) -> set[str]:
    return {
        f"{node.value.id}.{node.attr}"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }


def test_no_room_is_named_after_nothing():
    empty_names = {"utils", "util", "helpers", "helper", "common", "misc", "manager"}
    named = [p for room in MAY_IMPORT for p in files(room) if p.stem in empty_names]
    assert not named


def test_files_stay_readable():
    long = {
        f"{path.relative_to(ROOT)}: {lines} lines"
        for room in MAY_IMPORT
        for path in files(room)
        if (lines := len(path.read_text().splitlines())) > 330
    }
    assert not long
