"""The types of the settings' fields: whole numbers and switches that may be `auto`, numbers with an exponent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict

AUTO: Any = "auto"
"""The value of a setting that training/topology.py chooses."""


def _count_or_auto(value: Any) -> Any:
    number = None if isinstance(value, bool) else _whole_number(value)
    if value != AUTO and (number is None or number < 1):
        raise ValueError("must be a whole number, 1 or more, or auto")
    return AUTO if value == AUTO else number


def _whole_number(value: Any) -> int | None:
    try:
        return int(value) if isinstance(value, str) or float(value).is_integer() else None
    except (TypeError, ValueError, OverflowError):
        return None


def with_exponent(value: Any) -> Any:
    """1.5e9 as a whole number: YAML reads it as text."""
    try:
        number = float(value) if isinstance(value, str) else value
    except ValueError:
        return value
    return int(number) if isinstance(number, float) and number.is_integer() else value


def _switch_or_auto(value: Any) -> Any:
    if value is not True and value is not False and value != AUTO:
        raise ValueError("must be true, false or auto")
    return value


if TYPE_CHECKING:
    # To the type checker these are plain: training/topology.py has put a value in the place of every
    # `auto`, and steps in the place of tokens, before anything else of the trainer looks.
    Count = int
    Switch = bool
    Steps = int
else:
    Count = Annotated[int | Literal["auto"], BeforeValidator(_count_or_auto)]
    Switch = Annotated[bool | Literal["auto"], BeforeValidator(_switch_or_auto)]
    Steps = int | None  # None: they follow from `tokens`


class Strict(BaseModel):
    """Unknown keys are errors; a docstring under a field is its description."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)
