"""From a YAML file and `set=` overrides to `Settings`, or to one error a person can act on."""

from __future__ import annotations

import difflib
import re
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from settings.capacity import KINDS
from settings.model import NetworkSettings, Settings
from settings.placement import PlacementError, place
from settings.yaml_text import UnreadableYamlError, read_yaml

_LONGEST_LINE = 2000
_MOST_PARTS = 20
CONFIG_DIR = Path(__file__).resolve().parent.parent / "config"


class SettingsError(Exception):
    """A setting is wrong. The message has one line for each: name as written, what is wrong, what works."""

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(map(_printable, dict.fromkeys(lines))))


def load_settings(config: str = "l4", overrides: str | None = None, placement: Path | None = None,
                  say: Callable[[str], None] = lambda line: None) -> Settings:
    """Settings from a config name or file, with `a.b=c,d=e` overrides on top.

    Args:
        config: `l4` for config/l4.yaml, or the path of a YAML file.
        overrides: comma-separated `path=value`; values are YAML (`[a, b]` and quoted commas stay whole).
        placement: file with the zone that `eagleray up` has placed the deployment in, if there is one.
        say: told whether the zone comes from there.

    Raises:
        SettingsError: for a missing file, a key that does not exist, a value that cannot work, or a placement
            that is damaged or was chosen for another zone.
    """
    path = _config_path(config)
    raw = _read_yaml(path)
    written = _override(raw, overrides)
    if placement is not None:
        _place(raw, written, placement, say)
    try:
        return Settings.model_validate(raw)
    except ValidationError as error:
        raise SettingsError(*(_explain(e, path, written) for e in error.errors())) from None


def overridden(overrides: str | None) -> dict[tuple[str, ...], str]:
    """The paths that `set=` names, each with the override as it was written.

    Raises:
        SettingsError: for what is no override.
    """
    return _override({}, overrides)


def _override(raw: dict[str, Any], overrides: str | None) -> dict[tuple[str, ...], str]:
    written = {}
    for key, text, value in _parse_overrides(overrides or ""):
        keys = tuple(key.split("."))
        if len(keys) > _MOST_PARTS:
            raise SettingsError(f"set={key}: no setting lies that deep; README.md lists all of them")
        _assign(raw, keys, value, key)
        written[keys] = f"set={key}={text}"
    return written


def _place(raw: dict[str, Any], written: dict[tuple[str, ...], str], placement: Path,
           say: Callable[[str], None]) -> None:
    defaults = (str(Settings.model_fields["region"].default), str(NetworkSettings.model_fields["zone"].default))
    try:
        if said := place(raw, written, defaults, placement):
            say(said)
    except PlacementError as error:
        raise SettingsError(str(error)) from None


def _config_path(config: str) -> Path:
    path, named = Path(config), CONFIG_DIR / f"{config}.yaml"
    try:
        if path.suffix in (".yaml", ".yml"):
            if path.is_file():
                return path
            raise SettingsError(f"config={config}: no such file")
        if "/" not in config and named.is_file():
            return named
    except (OSError, ValueError) as error:  # too long for a file's name, or with a NUL in it
        raise SettingsError(f"config={config}: {getattr(error, 'strerror', None) or error}") from None
    names = sorted(p.stem for p in CONFIG_DIR.glob("*.yaml"))
    raise SettingsError(f"config={config}: no such config; use {', '.join(names)} or the path of a .yaml file")


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        raw = read_yaml(path.read_text(encoding="utf-8-sig"))
    except (UnreadableYamlError, UnicodeDecodeError, OSError) as error:
        raise SettingsError(f"{path}: not readable as YAML: {' '.join(str(error).split())}") from None
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise SettingsError(f"{path}: must be a mapping of settings, for example 'gpu: {{nodes: 2}}'")
    return raw


def _parse_overrides(text: str) -> list[tuple[str, str, Any]]:
    """Path, value as written and value as YAML reads it, for each override."""
    triples = []
    for part in _split_commas(text):
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise SettingsError(f"set={part}: must be path=value, for example set=training.steps=50")
        try:
            triples.append((key.strip(), value.strip(), read_yaml(value)))
        except UnreadableYamlError as error:
            raise SettingsError(f"set={part}: the value is not YAML ({error}); put it in quotes") from None
    return triples


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
    loc = tuple(str(part) for part in error["loc"] if part not in KINDS)
    where, given = _origin(loc, written) or f"{path}: ", error.get("input")
    name = ".".join(loc)
    if error["type"] == "extra_forbidden":
        kind = next((str(part) for part in error["loc"] if part in KINDS), "")
        return where + (_of_other_kind(loc, kind) or f"unknown setting {name}; {_nearest(loc)}")
    if error["type"] == "missing":
        return f"{where}{name} is missing; {_describe(loc)}"
    message = _plain(error)
    if not name:
        return where + message
    return where + (f"{name}: " if isinstance(given, (dict, BaseModel)) else f"{name} = {_show(given)}: ") + message


def _origin(loc: tuple[str, ...], written: Mapping[tuple[str, ...], str]) -> str:
    """The override that set this place, or something inside of it."""
    for keys, text in written.items():
        if loc[: len(keys)] == keys or keys[: len(loc)] == loc:
            return f"{text}: "
    return ""


_PLAIN = {
    "greater_than_equal": "must be {ge} or more",
    "greater_than": "must be more than {gt}",
    "less_than_equal": "must be {le} or less",
    "less_than": "must be less than {lt}",
    "literal_error": "must be {expected}",
    "union_tag_invalid": "kind must be one of {expected_tags}",
    "union_tag_not_found": "kind is missing; for example kind: on-demand",
    "int_parsing": "must be a whole number",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "string_type": "must be text; put it in quotes",
    "list_type": "must be a list, for example [a, b]",
    "model_type": "must be a group of settings, not one value",
    "finite_number": "must be a finite number",
    "timezone_aware": "must name its time zone, for example 2026-12-10T11:30:00Z",
    "datetime_parsing": "must be a moment in UTC, for example 2026-12-10T11:30:00Z",
    "datetime_from_date_parsing": "must be a moment in UTC, for example 2026-12-10T11:30:00Z",
    "string_pattern_mismatch": "must match {pattern}",
}


def _plain(error: Mapping[str, Any]) -> str:
    """pydantic's message in the words of a person who writes YAML."""
    if error["type"] in _PLAIN:
        return _PLAIN[error["type"]].format(**error.get("ctx", {}))
    return str(error["msg"]).removeprefix("Value error, ")


def _describe(loc: tuple[str, ...]) -> str:
    for model in _models_at(loc[:-1]):
        if field := model.model_fields.get(loc[-1]):
            return f"it is: {' '.join((field.description or '').split())}"
    return "add it"


def _of_other_kind(loc: tuple[str, ...], kind: str) -> str:
    """For a setting that exists, but not together with this `kind:`."""
    having = [m.model_fields["kind"] for m in _models_at(loc[:-1]) if kind and loc[-1] in m.model_fields]
    kinds = " or ".join(str(typing.get_args(field.annotation)[0]) for field in having)
    return kinds and f"{'.'.join(loc)} does not go with kind {kind}; it belongs to kind {kinds}"


def _nearest(loc: tuple[str, ...]) -> str:
    fields = _fields_at(loc[:-1])
    near = difflib.get_close_matches(loc[-1], fields, n=1, cutoff=0.5)
    if near:
        return f"did you mean {'.'.join((*loc[:-1], near[0]))}?"
    return f"settings here: {', '.join(fields)}"


def _fields_at(loc: tuple[str, ...]) -> list[str]:
    return list(dict.fromkeys(name for model in _models_at(loc) for name in model.model_fields))


def _models_at(loc: tuple[str, ...]) -> list[type[BaseModel]]:
    """The group of settings at a path; for a union, all its members."""
    models: list[type[BaseModel]] = [Settings]
    for part in loc:
        models = [m for model in models if part in model.model_fields
                  for m in models_in(model.model_fields[part].annotation)]
    return models


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """The groups of settings that a field's annotation allows."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if typing.get_origin(annotation) in (typing.Union, types.UnionType, typing.Annotated):
        return [m for arg in typing.get_args(annotation) for m in models_in(arg)]
    return []


def _show(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return str(value)


# What someone may have put where the name of its Secret belongs (ray.hf_token_secret): it must not get into a log.
_HF_TOKEN = re.compile(r"hf_[A-Za-z0-9]{12,}")


def _printable(line: str) -> str:
    """The line as one that a terminal only shows: what would move its cursor or break the line is spelled out."""
    if len(line) > _LONGEST_LINE:
        line = f"{line[:_LONGEST_LINE // 2]} … {line[-_LONGEST_LINE // 2:]}"
    line = _HF_TOKEN.sub("hf_…", line)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
