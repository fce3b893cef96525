"""Where a deployment was placed, remembered beside cdk.json: later deployments go to the same zone.

`eagleray up` writes the file when it has chosen a zone. Whatever reads the settings for a deployment reads it
too; zones that are named in `set=` win over it, and deleting it goes back to the settings' own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

PLACEMENT_FILE = Path("eagleray.placement.json")

PLACES = (("region",), ("network", "zone"), ("network", "second_zone"), ("network", "spare_zones"))
"""The settings that say where a deployment stands."""

_ABOUT = ("Where eagleray up placed each deployment; cdk deploy goes there too. Delete this file to go back to the "
          "zones of your settings, or name zones with -c set=network.zone=… for once.")


class PlacementError(Exception):
    """The file cannot be used; one line with the way out."""


@dataclass(frozen=True)
class Placement:
    """The place of one deployment.

    Attributes:
        region: its region.
        zone: of the nodes.
        second_zone: the other one that the control plane needs.
        spare_zones: with subnets, for moving there.
        instead_of: region and zone of the settings that it stands for; others make it stale.
        status: `trying` until the deployment went through.
        tried: what was found in zones before this one, by zone; a resumed attempt leaves them out.
    """

    region: str
    zone: str
    second_zone: str
    spare_zones: tuple[str, ...]
    instead_of: tuple[str, str]
    status: Literal["trying", "deployed", "failed"] = "trying"
    tried: Mapping[str, str] = field(default_factory=dict)

    def overrides(self) -> str:
        """As `set=` takes it."""
        spare = f"[{','.join(self.spare_zones)}]"
        return (f"region={self.region},network.zone={self.zone},network.second_zone={self.second_zone},"
                f"network.spare_zones={spare}")


def read_placement(path: Path, name: str) -> Placement | None:
    """The remembered place of deployment `name`; None if there is none.

    Raises:
        PlacementError: for a file that is damaged.
    """
    entry = _deployments(path).get(name)
    if entry is None:
        return None
    placement = _of(entry)
    if placement is None:
        raise PlacementError(_damaged(path))
    return placement


def _of(entry: Any) -> Placement | None:
    """An entry of the file; None if it is not one of ours."""
    try:
        known = {f.name: entry[f.name] for f in fields(Placement)}
        placement = Placement(**{**known, "spare_zones": tuple(known["spare_zones"]),
                                 "instead_of": tuple(known["instead_of"])})
        texts = [placement.region, placement.zone, placement.second_zone, *placement.spare_zones,
                 *placement.instead_of, *placement.tried, *placement.tried.values()]
    except (KeyError, TypeError, AttributeError):
        return None
    sound = all(isinstance(text, str) for text in texts) and len(placement.instead_of) == 2
    return placement if sound and placement.status in ("trying", "deployed", "failed") else None


def _damaged(path: Path) -> str:
    return f"{path}: not as eagleray up writes it; delete the file; eagleray up makes a new one"


def write_placement(path: Path, name: str, placement: Placement | None) -> None:
    """Remember the place of deployment `name`, or forget it; the file is whole at every moment."""
    deployments = _deployments(path)
    deployments.pop(name, None)
    if placement is not None:
        deployments[name] = asdict(placement)
    if not deployments:
        path.unlink(missing_ok=True)
        return
    draft = path.with_suffix(".json.new")
    draft.write_text(json.dumps({"about": _ABOUT, "deployments": deployments}, indent=2, ensure_ascii=False) + "\n")
    os.replace(draft, path)


def place(raw: dict[str, Any], overridden: Mapping[tuple[str, ...], str], defaults: tuple[str, str],
          path: Path) -> str | None:
    """Put the remembered place into `raw`, the settings as read; a sentence about it for the person, or None.

    Args:
        raw: the YAML with the overrides in it; changed.
        overridden: the paths that `set=` named.
        defaults: region and zone where `raw` names none.
        path: the file.

    Raises:
        PlacementError: for a damaged file, and for a place that was chosen for other settings.
    """
    name = raw.get("name", "eagleray")
    found = read_placement(path, name) if isinstance(name, str) else None
    if found is None:
        return None
    network = raw.get("network")
    network = network if isinstance(network, dict) else {}
    own = (raw.get("region", defaults[0]), network.get("zone", defaults[1]))
    if named := named_places(overridden):
        same = own == (found.region, found.zone)
        return None if same else f"{path} ({found.zone}) is not used: set= names {', '.join(named)}"
    if own != found.instead_of:
        raise PlacementError(
            f"{path}: {found.zone} was chosen in place of {found.instead_of[1]}, and the settings now say "
            f"{own[1]}; delete the file, or name the zone: -c set=network.zone=…")
    raw["region"] = found.region
    raw["network"] = {**network, "zone": found.zone, "second_zone": found.second_zone,
                      "spare_zones": list(found.spare_zones)}
    if (found.region, found.zone) == own:
        return None
    return f"zone {found.zone} from {path}, in place of {own[1]}; delete the file to go back"


def named_places(overridden: Mapping[tuple[str, ...], str]) -> list[str]:
    """Those of the `set=` paths that say where to deploy."""
    return [".".join(keys) for keys in overridden if any(keys == p or keys == p[:len(keys)] for p in PLACES)]


def _deployments(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text())
        found = data["deployments"]
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError):
        found = None
    if not isinstance(found, dict):
        raise PlacementError(_damaged(path))
    return found
