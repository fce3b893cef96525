"""Settings from `-c config=…` and `-c set=…`, written and found as the cdk command finds them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ops.errors import NothingToDoError
from settings import Settings, SettingsError, load_settings
from settings.placement import PLACEMENT_FILE

_KEYS = ("config", "set")
# In the order in which the CDK believes them; the command line comes before both.
_FILES = ("cdk.json", "cdk.context.json")


@dataclass(frozen=True)
class Context:
    """A config's name or file, and the overrides on top of it."""

    config: str = "l4"
    overrides: str | None = None

    def settings(self) -> Settings:
        """The settings of a deployment from here: in the zone that `eagleray up` remembers, if it does.

        Raises:
            NothingToDoError: one line for each wrong setting.
        """
        return self._load(PLACEMENT_FILE)

    def settings_as_written(self) -> Settings:
        """The settings without what `eagleray up` remembers.

        Raises:
            NothingToDoError: one line for each wrong setting.
        """
        return self._load(None)

    def _load(self, placement: Path | None) -> Settings:
        try:
            return load_settings(self.config, self.overrides, placement)
        except SettingsError as error:
            raise NothingToDoError(str(error)) from None

    def with_override(self, override: str) -> Context:
        """The same with one more `path=value`, which wins over earlier ones."""
        return Context(self.config, f"{self.overrides},{override}" if self.overrides else override)


def read_context(written: Sequence[str], folder: Path = Path()) -> Context:
    """The context of a command line; what it leaves out is taken from the cdk files in `folder`, as cdk does.

    Args:
        written: the values of `-c`, such as `config=h100`.

    Raises:
        NothingToDoError: for a key that is not ours, one given twice, or a damaged cdk file.
    """
    found: dict[str, str] = {}
    for part in written:
        key, equals, value = part.partition("=")
        if not equals or key not in _KEYS:
            raise NothingToDoError(f"-c {part}: must be config=NAME or set=path=value,…, "
                                   "for example -c config=h100 -c set=gpu.nodes=4")
        if key in found:
            raise NothingToDoError(f"-c {key}= is given twice, and cdk would only take the last one; "
                                   "use one, with commas: -c set=gpu.nodes=4,training.steps=50")
        found[key] = value
    for name in _FILES:
        found = {**_from_file(folder / name), **found}
    return Context(found.get("config") or Context.config, found.get("set"))


def _from_file(path: Path) -> dict[str, str]:
    try:
        data: Any = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise NothingToDoError(f"{path}: not readable as JSON: {error}") from None
    context = data.get("context", {}) if path.name == "cdk.json" else data
    return {key: str(context[key]) for key in _KEYS if context.get(key)}
