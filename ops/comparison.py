"""What `--compare l4,h100,g6e` names: configs, and instance types or families in place of the current GPU type."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from eagleray import catalog
from ops.context import Context
from ops.errors import NothingToDoError
from settings import Settings
from settings.loading import CONFIG_DIR


def compared(text: str, context: Context) -> list[tuple[str, Settings]]:
    """Label and settings of each entry; overrides of the context count for all of them.

    Raises:
        NothingToDoError: for an entry that is neither a config nor a type or family with GPUs and EFA, or whose
            settings are wrong.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise NothingToDoError("--compare: name configs or instance types, for example --compare l4,h100,g6e")
    return [_entry(name, context) for name in dict.fromkeys(names)]


def _entry(name: str, context: Context) -> tuple[str, Settings]:
    if name.endswith((".yaml", ".yml")) or (CONFIG_DIR / f"{name}.yaml").is_file():
        return name, Context(name, context.overrides).settings()
    instance = _instance_type(name, context.settings())
    return instance, context.with_override(f"gpu.instance_type={instance}").settings()


def _instance_type(name: str, current: Settings) -> str:
    types = [catalog.instance_type(t) for t in catalog.efa_gpu_types()]
    if any(t.type == name for t in types):
        return name
    family = [t for t in types if t.family == name]
    if not family:
        raise NothingToDoError(f"--compare {name}: no config, and no instance type or family with GPUs and EFA; "
                               f"{_near(name, types)}")
    wanted = current.gpu.instance.gpus
    enough = [t for t in family if t.gpus >= wanted] or [max(family, key=lambda t: t.gpus)]
    return min(enough, key=lambda t: (t.gpus, t.vcpu)).type


def _near(name: str, types: Sequence[catalog.InstanceType]) -> str:
    configs = sorted(path.stem for path in CONFIG_DIR.glob("*.yaml"))
    families = list(dict.fromkeys(t.family for t in types))
    near = get_close_matches(name, [*configs, *families, *(t.type for t in types)], n=3, cutoff=0.5)
    return f"near to it: {', '.join(near)}" if near else f"use {', '.join([*configs, *families])}"
