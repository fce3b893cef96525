"""From a YAML file and `set=` overrides to `Settings`, or to one error a person can act on."""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from settings.model import Settings

CONFIG_DIR = Path(__file__).resolve().parent.parent / "config"


class SettingsError(Exception):
    """A setting is wrong. The message has one line for each: name as written, what is wrong, what works."""


def load_settings(config: str = "l4", overrides: str | None = None) -> Settings:
    """Settings from a config name or file, with `a.b=c,d=e` overrides on top.

    Args:
        config: `l4` for config/l4.yaml, or the path of a YAML file.
        overrides: comma-separated `path=value`; values are YAML (`[a, b]` and quoted commas stay whole).

    Raises:
        SettingsError: for a missing file, a key that does not exist, or a value that cannot work.
    """
    path = _config_path(config)
    raw = _read_yaml(path)
    written: dict[tuple[str, ...], str] = {}
    for key, value in _parse_overrides(overrides or ""):
        keys = tuple(key.split("."))
        _assign(raw, keys, value, key)
        written[keys] = f"set={key}={_show(value)}"
    try:
        return Settings.model_validate(raw)
    except ValidationError as error:
        lines = [_explain(e, path, written) for e in error.errors()]
        raise SettingsError("\n".join(dict.fromkeys(lines))) from None


def _config_path(config: str) -> Path:
    path = Path(config)
    if path.suffix in (".yaml", ".yml"):
        if path.is_file():
            return path
        raise SettingsError(f"config={config}: no such file")
    named = CONFIG_DIR / f"{config}.yaml"
    if named.is_file() and "/" not in config:
        return named
    names = sorted(p.stem for p in CONFIG_DIR.glob("*.yaml"))
    raise SettingsError(f"config={config}: no such config; use {', '.join(names)} or the path of a .yaml file")


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        raw = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        raise SettingsError(f"{path}: not readable as YAML: {' '.join(str(error).split())}") from None
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise SettingsError(f"{path}: must be a mapping of settings, for example 'gpu: {{nodes: 2}}'")
    return raw


def _parse_overrides(text: str) -> list[tuple[str, Any]]:
    pairs = []
    for part in _split_commas(text):
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise SettingsError(f"set={part}: must be path=value, for example set=training.steps=50")
        try:
            pairs.append((key.strip(), yaml.safe_load(value)))
        except yaml.YAMLError:
            raise SettingsError(f"set={part}: the value is not YAML; put it in quotes") from None
    return pairs


def _split_commas(text: str) -> list[str]:
    """Split at commas outside brackets and quotes; empty parts are dropped."""
    parts, depth, quote, start = [], 0, "", 0
    for i, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        elif char in "[{":
            depth += 1
        elif char in "]}":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    parts.append(text[start:])
    return [part.strip() for part in parts if part.strip()]


def _assign(raw: dict[str, Any], keys: tuple[str, ...], value: Any, key: str) -> None:
    here = raw
    for part in keys[:-1]:
        below = here.setdefault(part, {})
        if below is None:
            below = here[part] = {}
        if not isinstance(below, dict):
            raise SettingsError(f"set={key}: {part} is a value, not a group of settings")
        here = below
    here[keys[-1]] = value


def _explain(error: Mapping[str, Any], path: Path, written: Mapping[tuple[str, ...], str]) -> str:
    # pydantic puts the discriminator's value into the path of a union: ('gpu', 'capacity', 'reservation', 'id')
    loc = tuple(str(part) for part in error["loc"] if part not in ("on-demand", "reservation"))
    where = next((f"{text}: " for keys, text in written.items() if loc[: len(keys)] == keys and keys), "")
    where = where or f"{path}: "
    name = ".".join(loc)
    if error["type"] == "extra_forbidden":
        return f"{where}unknown setting {name}; {_nearest(loc)}"
    if error["type"] == "missing":
        return f"{where}{name} is missing"
    message = str(error["msg"]).removeprefix("Value error, ")
    message = message[:1].lower() + message[1:] if message.startswith("Input should") else message
    given = error.get("input")
    shown = "" if isinstance(given, (dict, BaseModel)) else f" = {_show(given)}"
    return f"{where}{name}{shown}: {message}" if name else f"{where}{message}"


def _nearest(loc: tuple[str, ...]) -> str:
    fields = _fields_at(loc[:-1])
    near = difflib.get_close_matches(loc[-1], fields, n=1, cutoff=0.5)
    if near:
        return f"did you mean {'.'.join((*loc[:-1], near[0]))}?"
    return f"settings here: {', '.join(fields)}"


def _fields_at(loc: tuple[str, ...]) -> list[str]:
    """Names of the settings below a path; for a union, of all its members."""
    models: list[type[BaseModel]] = [Settings]
    for part in loc:
        models = [m for model in models if part in model.model_fields
                  for m in _models_in(model.model_fields[part].annotation)]
    return list(dict.fromkeys(name for model in models for name in model.model_fields))


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if typing.get_origin(annotation) in (typing.Union, types.UnionType, typing.Annotated):
        return [m for arg in typing.get_args(annotation) for m in _models_in(arg)]
    return []


def _show(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return str(value)
