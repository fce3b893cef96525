"""The attempts of `eagleray up`: one zone after the other until the deployment goes through."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from rich.console import Console
from rich.markup import escape

from ops.aws import FAILURES, Aws, trouble
from ops.context import Context
from ops.errors import CommandError, NothingToDoError, StoppedError
from ops.interrupts import Interrupts, interrupts
from ops.preflight.command import needs as needed
from ops.preflight.finding import Finding, Region
from ops.preflight.identity import identity
from ops.preflight.report import Candidate, Survey
from ops.preflight.screen import show_finding, show_survey
from ops.preflight.stack_checks import STACKS, obstacles, stack_state, stands
from ops.preflight.survey import Request, survey
from ops.up import cdk
from ops.up.choice import Choice, choose, only, placement, zone_of_standing_cluster
from ops.up.failure import Failure, failure_since, newest_events
from settings import SettingsError
from settings.loading import overridden
from settings.placement import (
    PLACEMENT_FILE,
    Placement,
    PlacementError,
    named_places,
    read_placement,
    write_placement,
)

_PAUSE_SECONDS = 10.0

NO_CAPACITY = 3
"""Exit code where no zone of the list had capacity."""


@dataclass(frozen=True)
class Wanted:
    """What was asked for: which settings, in which regions and zones, and options for cdk itself."""

    context: Context
    regions: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()
    cdk_options: tuple[str, ...] = ()


class NoCapacityError(CommandError):
    """No zone that may be used has the instances."""

    exit_code = NO_CAPACITY


def run(wanted: Wanted, screen: Console, aws: Callable[[], Aws] = Aws) -> None:
    """Deploy, and remember where.

    Raises:
        NoCapacityError: if no zone has the instances.
        CommandError: if the deployment fails for any other reason; its exit code is 1.
        CredentialsError, NothingToDoError: where nothing was started.
        StoppedError: if a signal came; what CloudFormation has begun goes on by itself.
    """
    cdk.require_cdk()
    attempts = _Attempts(wanted, screen, aws())
    try:
        with interrupts() as signals:
            attempts.run(signals)
    except StoppedError as stop:
        message = "stopped. " + (
            f"CloudFormation goes on by itself with what it has begun; eagleray up goes on from there, and to undo "
            f"it: {attempts.undo}" if attempts.undo else "nothing was deployed")
        raise StoppedError(stop.exit_code - 128, message) from None
    except FAILURES as error:
        further = "; eagleray up goes on from here" if attempts.undo else ""
        raise CommandError(f"{trouble(error)}{further}") from None


class _Attempts:
    """The state of one run. `undo` is the command that removes what was begun."""

    def __init__(self, wanted: Wanted, screen: Console, aws: Aws) -> None:
        self._wanted, self._screen, self._aws = wanted, screen, aws
        self._settings = wanted.context.settings()
        written = wanted.context.settings_as_written()
        self._as_written = (written.region, written.network.zone)
        self._pinned = _pinned(wanted)
        self._stood_before: set[str] = set()
        self.undo = ""

    def run(self, signals: Interrupts) -> None:
        settings = self._settings
        before = None if self._pinned else self._remembered()
        request = Request.of_settings(settings) if self._pinned else Request.in_regions(
            self._wanted.regions, self._wanted.zones, settings)
        self._wait_for_stacks(request)
        found = survey(self._aws, settings, request)
        show_survey(self._screen, found, needed(settings))
        regions = {name: Region(self._aws, name, found.account) for name in request.regions}
        unfinished = before if before and before.status == "trying" else None
        self._stood_before = {name for name, region in regions.items() if self._standing(region)} - (
            {unfinished.region} if unfinished else set())
        tried = dict(unfinished.tried) if unfinished else {}
        self._try_each(self._allowed(choose(found, tried), found, regions), found, regions, signals)

    def _remembered(self) -> Placement | None:
        try:
            return read_placement(PLACEMENT_FILE, self._settings.name)
        except PlacementError as error:
            raise NothingToDoError(str(error)) from None

    def _allowed(self, choice: Choice, found: Survey, regions: dict[str, Region]) -> Choice:
        """Without the zones that would move what stands, or that the settings exclude."""
        zone = self._settings.network.zone
        if self._pinned:
            return only(choice, [zone], "set= names the zone")
        if self._wanted.zones:
            return choice
        if standing := zone_of_standing_cluster(found, self._settings, regions):
            return only(choice, [standing], f"the cluster stands in {standing}, and moving it replaces all nodes; "
                        "name the zone with --azs to have that")
        return choice

    def _try_each(self, choice: Choice, found: Survey, regions: dict[str, Region], signals: Interrupts) -> None:
        left_out = dict(choice.left_out)
        without: set[str] = set()
        last: Placement | None = None
        for number, candidate in enumerate(choice.places, start=1):
            if candidate.region in without:
                continue
            region = regions[candidate.region]
            if last and last.region != region.name:
                self._leave(regions[last.region], last, signals)
            report = next(r for r in found.reports if r.region == candidate.region)
            place = placement(region, self._settings, candidate, report, self._as_written)
            if isinstance(place, str):
                left_out[candidate.zone] = place
                continue
            last = replace(place, tried=left_out)
            failure = self._attempt(region, last, f"{number} of {len(choice.places)}", signals)
            if failure is None:
                return
            left_out[candidate.zone] = str(failure)
            if failure.needs == "region":
                without.add(region.name)
            self._explain(region, candidate, failure)
        self._give_up(left_out, last, regions)

    def _attempt(self, region: Region, place: Placement, count: str, signals: Interrupts) -> Failure | None:
        """Deploy to one place; None if it went through, else the lack of capacity that stopped it."""
        context, name = self._context(place), self._settings.name
        self._refuse_blocked(region)
        self._say(f"\n{count}: {place.zone}, second zone {place.second_zone}"
                  + (f", subnets also in {', '.join(place.spare_zones)}" if place.spare_zones else ""))
        self._remember(place)
        before = newest_events(region, name)
        self.undo = cdk.command_line("destroy", context)
        code = cdk.deploy(context, self._wanted.cdk_options, signals)
        if code == 0:
            self._remember(replace(place, status="deployed", tried={}))
            self._say(f"Deployed in {place.zone}." + (
                "" if self._pinned else f" {PLACEMENT_FILE} remembers it: a later cdk deploy goes there too."))
            return None
        self._wait(region)
        failure = failure_since(region, name, before)
        if failure is None:
            raise CommandError(f"cdk deploy ended with exit code {code} before any resource failed; "
                               "what it said is above, and eagleray up goes on from here")
        if failure.needs == "mending":
            raise CommandError(f"{failure}\nThat is no lack of capacity, so no other zone is tried; once it is "
                               "mended, eagleray up goes on from here")
        return failure

    def _context(self, place: Placement) -> Context:
        # Named last, so that they win; cdk takes one -c set= only.
        return self._wanted.context if self._pinned else self._wanted.context.with_override(place.overrides())

    def _explain(self, region: Region, candidate: Candidate, failure: Failure) -> None:
        self._say(f"\n{candidate.zone}: {failure}")
        if kept := self._standing(region):
            self._say(f"Kept for another zone of {region.name}: {', '.join(kept)}; only the NAT gateway moves.")
        else:
            self._say("Nothing is kept: CloudFormation has taken back all that it had made.")

    def _leave(self, region: Region, place: Placement, signals: Interrupts) -> None:
        """Before another region: remove what would bill in this one, but nothing that stood before."""
        standing, context = self._standing(region), self._context(place)
        if not standing:
            return
        remove = cdk.command_line("destroy", context)
        if region.name in self._stood_before:
            self._say(f"\nLeaving {region.name}: {', '.join(standing)} stood before and stay, and cost; "
                      f"to remove them: {remove}")
            return
        self._say(f"\nLeaving {region.name}: removing what was made there, for it costs and would not be used.")
        if cdk.destroy(context, signals) != 0:
            self._say(f"It could not be removed; to do so: {remove}")

    def _give_up(self, left_out: dict[str, str], last: Placement | None, regions: dict[str, Region]) -> None:
        lines = ["no zone left to try:", *(f"  {zone}: {why}" for zone, why in left_out.items())]
        stays = self._standing(regions[last.region]) if last else []
        if last and stays:
            lines.append(f"{', '.join(stays)} stand in {last.region}, kept for the next eagleray up, and cost a "
                         f"little each hour; to remove: {cdk.command_line('destroy', self._context(last))}")
            self._remember(replace(last, status="failed", tried={}))
        elif last:
            self._remember(None)
        elif not self._pinned and (before := self._remembered()) and before.status == "trying":
            # Everything was tried before this run; the next one starts from the front again.
            self._remember(replace(before, status="failed", tried={}))
        raise NoCapacityError("\n".join(lines)) if last else CommandError("\n".join(lines))

    def _refuse_blocked(self, region: Region) -> None:
        blocked = obstacles(region, self._settings.name)
        for finding in blocked:
            show_finding(self._screen, finding)
        if blocked:
            raise CommandError("a stack is in the way; mend it as said above, and eagleray up goes on from here")

    def _wait_for_stacks(self, request: Request) -> None:
        """Let an earlier deployment come to its end: CloudFormation goes on with it though nobody watches."""
        who = identity(self._aws, request.regions, self._settings.account)
        for name in request.regions:
            try:
                self._wait(Region(self._aws, name, who.account))
            except FAILURES as error:
                # The survey says it beside all else; a region that does not answer is no reason to stop here.
                show_finding(self._screen, Finding("stacks", "unknown", f"{name}: {trouble(error).text}"))

    def _wait(self, region: Region) -> None:
        told = ""
        while busy := [s for s in self._stacks() if _in_progress(region, s)]:
            if told != busy[0]:
                told = busy[0]
                self._say(f"Waiting for {told}, which CloudFormation is at work on …")
            time.sleep(_PAUSE_SECONDS)

    def _remember(self, place: Placement | None) -> None:
        if not self._pinned:
            write_placement(PLACEMENT_FILE, self._settings.name, place)

    def _standing(self, region: Region) -> list[str]:
        return [stack for stack in self._stacks() if stands(region, stack)]

    def _stacks(self) -> list[str]:
        return [f"{self._settings.name}-{part}" for part in STACKS]

    def _say(self, text: str) -> None:
        self._screen.print(escape(text), highlight=False, soft_wrap=True)


def _pinned(wanted: Wanted) -> bool:
    """Whether `set=` names the place, so that there is nothing to choose or to remember."""
    try:
        named = named_places(overridden(wanted.context.overrides))
    except SettingsError as error:
        raise NothingToDoError(str(error)) from None
    if named and (wanted.regions or wanted.zones):
        raise NothingToDoError(f"set= names {', '.join(named)}, and --regions or --azs name places too; "
                               "leave one out")
    return bool(named)


def _in_progress(region: Region, stack: str) -> bool:
    state = stack_state(region, stack)
    return state is not None and state["StackStatus"].endswith("_IN_PROGRESS") \
        and state["StackStatus"] != "REVIEW_IN_PROGRESS"
