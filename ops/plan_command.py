"""`eagleray plan`: one plan, or several side by side, for a person or for a machine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Literal

from rich.console import Console
from rich.markup import escape

from ops.comparison import compared
from ops.context import Context
from ops.plan import Plan, as_json, make_plan
from ops.plan_screen import show, show_side_by_side
from settings import Settings
from settings.prices import Prices, read_prices


@dataclass(frozen=True)
class Wanted:
    """What was asked for: which settings, what beside them, prices from where, and for whom."""

    context: Context
    compare: str | None
    prices: Literal["file", "live"]
    output: Literal["screen", "json"]


def run(wanted: Wanted, screen: Console, errors: Console) -> int:
    """Show the plan or plans. 0: at least one fits or is not known not to; 1: none fits."""
    if wanted.compare is None:
        named = [(wanted.context.config, wanted.context.settings())]
    else:
        named = compared(wanted.compare, wanted.context)
    prices = read_prices()
    if wanted.prices == "live":
        prices = _with_live(prices, [settings for _, settings in named], errors)
    plans = [make_plan(label, settings, prices) for label, settings in named]
    if wanted.output == "json":
        found = [as_json(plan) for plan in plans]
        screen.file.write(json.dumps({"plans": found} if wanted.compare is not None else found[0], indent=2) + "\n")
    elif wanted.compare is not None:
        show_side_by_side(plans, screen)
    else:
        show(plans[0], screen)
    return exit_code(plans)


def exit_code(plans: Sequence[Plan]) -> int:
    """1 where every plan is refused."""
    return 1 if all(plan.fits is False for plan in plans) else 0


def _with_live(prices: Prices, wanted: Sequence[Settings], errors: Console) -> Prices:
    """The prices with those that AWS answers with right now; without an answer, the file's, and a line about it."""
    from ops.aws import FAILURES, Aws, CredentialsError, trouble
    from ops.price_list import API_REGION, fetch_instances, fetch_services

    live = {}
    try:
        client = Aws().client("pricing", API_REGION)
        for settings in wanted:
            region, today = settings.region, date.today().isoformat()
            types = {settings.gpu.instance_type, settings.system.instance_type}
            found = fetch_instances(client, region, types, today) | fetch_services(client, region, today)
            live |= {(region, name): price for name, price in found.items()}
    except CredentialsError as error:
        _say(errors, str(error))
    except FAILURES as error:
        failure = trouble(error)
        _say(errors, f"{failure.text}; {failure.fix}" if failure.fix else failure.text)
    return Prices(prices.data, live)


def _say(errors: Console, why: str) -> None:
    errors.print(f"[yellow]no live prices[/]: {escape(why)}. The prices are those of the file.", highlight=False,
                 soft_wrap=True)
