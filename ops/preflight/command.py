"""`eagleray preflight`: ask AWS what a deployment would meet, for a person or for a machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from rich.console import Console
from rich.markup import escape

from ops.aws import Aws
from ops.context import Context
from ops.errors import NothingToDoError
from ops.preflight.finding import Region
from ops.preflight.probe import probe, refuse_senseless
from ops.preflight.report import EXIT_CODES, Survey
from ops.preflight.screen import show_finding, show_survey
from ops.preflight.survey import Request, survey
from settings import Settings


@dataclass(frozen=True)
class Wanted:
    """What was asked for: which settings, where, whether to probe, and for whom."""

    context: Context
    regions: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()
    everywhere: bool = False
    probe: Literal["no", "ask", "yes"] = "no"
    output: Literal["screen", "json"] = "screen"


def run(wanted: Wanted, screen: Console, aws: Callable[[], Aws] = Aws,
        confirm: Callable[[str], bool] = lambda question: False) -> int:
    """Show what was found; the exit code of the command.

    Args:
        wanted: see there.
        screen: for the result.
        aws: makes the clients, once the settings are known to be right.
        confirm: asks a yes-or-no question before a probe.

    Raises:
        CredentialsError, NothingToDoError: where nothing could be asked.
        StoppedError: if a signal ended a probe; its reservation is cancelled, or named on the screen.
    """
    settings = wanted.context.settings()
    if wanted.probe != "no":
        refuse_senseless(settings)
    clients = aws()
    found = survey(clients, settings, where(wanted, settings))
    if wanted.output == "json":
        told = found.to_json()
    else:
        told = {}
        show_survey(screen, found, needs(settings))
    code = found.exit_code
    if wanted.probe != "no":
        code, told["probe"] = _probed(wanted, settings, clients, found, screen, confirm)
    if wanted.output == "json":
        screen.file.write(json.dumps(told, indent=2) + "\n")
    return code


def where(wanted: Wanted, settings: Settings) -> Request:
    """Where to look.

    Raises:
        NothingToDoError: for options that exclude each other, and regions without EKS.
    """
    if wanted.everywhere and (wanted.regions or wanted.zones):
        raise NothingToDoError("--all-regions and --regions or --azs exclude each other; leave one out")
    if wanted.everywhere:
        return Request.in_all_regions(settings)
    if wanted.regions or wanted.zones:
        return Request.in_regions(wanted.regions, wanted.zones, settings)
    return Request.of_settings(settings)


def needs(settings: Settings) -> str:
    """`2 x g6.12xlarge (on-demand), 1 x m7i.xlarge`."""
    gpu, system = settings.gpu, settings.system
    return f"{gpu.nodes} x {gpu.instance_type} ({gpu.capacity.kind}), {system.nodes} x {system.instance_type}"


def listed(text: str | None) -> tuple[str, ...]:
    """`a,b` of an option as its parts."""
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def _probed(wanted: Wanted, settings: Settings, aws: Aws, found: Survey, screen: Console,
            confirm: Callable[[str], bool]) -> tuple[int, object]:
    """Reserve the nodes in the zone that decides, and cancel that; nothing where the checks failed already."""
    chosen = found.verdict
    if chosen is None or chosen.status == "failed":
        _say(wanted, screen, "No probe: the checks above fail.")
        return found.exit_code, None
    shape = f"{settings.gpu.nodes} x {settings.gpu.instance_type}"
    if wanted.probe == "ask" and not confirm(
            f"Reserve {shape} in {chosen.zone} and cancel that at once? It costs some seconds of their price"):
        _say(wanted, screen, "No probe made.")
        return found.exit_code, None
    region = Region(aws, chosen.region, found.account)
    finding = probe(region, settings, chosen.zone, lambda text: _say(wanted, screen, text))
    if wanted.output == "screen":
        show_finding(screen, finding)
    return max(found.exit_code, EXIT_CODES[finding.status], key=_gravity), {
        "zone": chosen.zone, "status": finding.status, "text": finding.text, "fix": finding.fix}


def _gravity(code: int) -> int:
    return (0, 3, 1).index(code)


def _say(wanted: Wanted, screen: Console, text: str) -> None:
    # A reservation that may be left must be told, also where stdout is for a machine.
    target = screen if wanted.output == "screen" else Console(stderr=True)
    target.print(escape(text), highlight=False, soft_wrap=True)
