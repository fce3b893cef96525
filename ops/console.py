"""The console of every command: it shows what logs, manifests and clusters say, and does nothing that they say."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import Any

import rich.console
from rich.segment import Segment

# Control characters, and those that turn the direction of writing or are not seen. A terminal that gets them may
# move its cursor over what stood there, set its title, or answer as if it were typed.
_NOT_SHOWN = ("Cc", "Cf", "Cs", "Co")


class Console(rich.console.Console):
    """A rich console on which texts of others cannot write control sequences; its own colours stay."""

    def render(self, renderable: Any, options: rich.console.ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


def printable(text: str) -> str:
    """The text with `\N{REPLACEMENT CHARACTER}` in place of every character that a terminal would act on."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c in "\n\t" or unicodedata.category(c) not in _NOT_SHOWN else "\N{REPLACEMENT CHARACTER}"
                   for c in text)
