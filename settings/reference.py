"""The table of every setting, made from the settings themselves: `python -m settings.reference README.md`."""

from __future__ import annotations

import json
import re
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from settings.loading import models_in
from settings.model import Settings


def markdown() -> str:
    """A Markdown table of all settings with their defaults and meanings."""
    rows = [f"| `{name}` | {_default(field)} | {_meaning(field)} |" for name, field in _leaves(Settings, ())]
    return "\n".join(["| setting | default | meaning |", "|---|---|---|", *dict.fromkeys(rows)])


def _leaves(model: type[BaseModel], path: tuple[str, ...]) -> Iterator[tuple[str, FieldInfo]]:
    for name, field in model.model_fields.items():
        below = models_in(field.annotation)
        if not below:
            yield ".".join((*path, name)), field
        for group in below:
            yield from _leaves(group, (*path, name))


def _default(field: FieldInfo) -> str:
    choices = _choices(field.annotation)
    if field.is_required():
        return f"`{choices[0]}`" if len(choices) == 1 else "required"
    value = field.get_default()
    if value is None or value == []:
        return "none"
    return f"`{value}`" if isinstance(value, str) else f"`{json.dumps(value)}`"


def _meaning(field: FieldInfo) -> str:
    text = " ".join((field.description or "").split())
    choices = _choices(field.annotation)
    return text + (f" One of {', '.join(f'`{c}`' for c in choices)}." if len(choices) > 1 else "")


def _choices(annotation: Any) -> tuple[str, ...]:
    return typing.get_args(annotation) if typing.get_origin(annotation) is typing.Literal else ()


def write_into(document: Path) -> None:
    """Put the table between the `settings` markers of a Markdown file."""
    between = re.compile(r"(<!-- settings:.*?-->\n).*?(<!-- /settings -->)", re.DOTALL)
    document.write_text(between.sub(lambda marks: f"{marks[1]}{markdown()}\n{marks[2]}", document.read_text()))


if __name__ == "__main__":
    write_into(Path(sys.argv[1]))
