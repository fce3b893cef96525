"""YAML from anybody's hands: read without making objects, without following it into the deep, or an error."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from typing import Any

import yaml

_MOST_CHARACTERS = 2**20
_MOST_DEPTH = 40
_MOST_VALUES = 100_000  # with every alias written out


class UnreadableYamlError(ValueError):
    """The text is no YAML, or more than a person writes; the message says what."""


def read_yaml(text: str) -> Any:
    """The one document of `text`.

    Raises:
        UnreadableYamlError: for what is no YAML, and for what is made to exhaust its reader.
    """
    if len(text) > _MOST_CHARACTERS:
        raise UnreadableYamlError(f"longer than {_MOST_CHARACTERS} characters, which no settings are")
    try:
        _survey(text)
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        place = f"line {mark.line + 1}: " if mark else ""
        raise UnreadableYamlError(f"{place}{problem or ' '.join(str(error).split())}") from None
    except (ValueError, TypeError, LookupError, OverflowError) as error:  # such as a date with a 13th month
        raise UnreadableYamlError(f"a value that cannot be read ({error}); put it in quotes") from None
    _measure(value)
    return value


def _survey(text: str) -> None:
    """Walk through the events first: a deep file would exhaust the stack of what makes values of it."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _MOST_DEPTH:
            raise UnreadableYamlError(f"nested deeper than {_MOST_DEPTH} in line {event.start_mark.line + 1}")


def _measure(value: Any) -> None:
    """Count values as if each alias were written out, without doing so; look at the leaves."""
    sizes: dict[int, int] = {}

    def size(one: Any) -> int:
        if not isinstance(one, dict | list):
            _check_leaf(one)
            return 1
        if id(one) not in sizes:
            sizes[id(one)] = -1
            sizes[id(one)] = 1 + sum(size(below) for below in _inside(one))
        elif sizes[id(one)] < 0:
            raise UnreadableYamlError("an alias that contains itself")
        return sizes[id(one)]

    if size(value) > _MOST_VALUES:
        raise UnreadableYamlError("its aliases unfold into more values than anybody sets; write out what is meant")


def _inside(value: dict[Any, Any] | list[Any]) -> Iterator[Any]:
    if isinstance(value, list):
        yield from value
        return
    for key, below in value.items():
        if not isinstance(key, str):
            raise UnreadableYamlError(f"the name {key} is no text; put it in quotes")
        yield key
        yield below


def _check_leaf(value: Any) -> None:
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise UnreadableYamlError("a text with half a character (a lone surrogate)") from None
    elif not isinstance(value, int | float | date | None):
        raise UnreadableYamlError(f"a value of type {type(value).__name__}, which no setting has")
