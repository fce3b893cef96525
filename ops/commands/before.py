"""Commands before anything is deployed, and the one that deploys: plan, catalog, preflight, up."""

from __future__ import annotations

from typing import Annotated

import typer

from ops.console import Console
from ops.errors import NothingToDoError

app = typer.Typer()


@app.command(epilog="Example: eagleray plan -c config=h100 -c set=training.tokens=1e9 --compare l4,h100,g6e")
def plan(
    context: Annotated[list[str] | None, typer.Option("-c", "--context", metavar="KEY=VALUE", help=
        "config=NAME or file, set=path=value,…: as for cdk, and by default what cdk would take.")] = None,
    compare: Annotated[str | None, typer.Option(metavar="A,B,…", help=
        "Side by side: configs, and instance types or families in place of the GPU type.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
    live: Annotated[bool, typer.Option("--live", help="Prices from AWS as of now; needs credentials.")] = False,
) -> None:
    """What a training needs, costs and reaches, before anything is paid: instances, quota, dollars, memory, speed.

    Needs no credentials and asks nothing of AWS (but for --live). Each figure says whether it is measured,
    published or predicted; the predictions are those that the job itself chooses its mesh and batch by.

    Exit codes: 0 it fits, or nothing is known against it; 1 it does not fit (with --compare: none does);
    2 a wrong setting or option.
    """
    from ops.context import read_context
    from ops.plan_command import Wanted, run

    wanted = Wanted(read_context(context or []), compare, "live" if live else "file",
                    "json" if as_json else "screen")
    raise typer.Exit(run(wanted, Console(), Console(stderr=True)))


catalog_app = typer.Typer(no_args_is_help=True, help="The data files about what AWS sells, from AWS's own answers.")
app.add_typer(catalog_app, name="catalog")


@catalog_app.command("add", epilog="Example: eagleray catalog add g7e.12xlarge --region us-west-2")
def catalog_add(
    instance_type: Annotated[str, typer.Argument(help="Instance type, such as g7e.12xlarge.")],
    region: Annotated[str, typer.Option(help="Where to ask.")] = "us-east-2",
) -> None:
    """Write a new instance type into the catalog, from EC2's DescribeInstanceTypes; needs credentials.

    Exit codes: 0 added, 1 AWS did not answer, 2 no such type, one that cannot train, or no credentials.
    """
    from ops.catalog_command import add_type

    for line in add_type(instance_type, region):
        typer.echo(line)


@catalog_app.command("prices", epilog="Example: eagleray catalog prices us-east-2 us-west-2")
def catalog_prices(regions: Annotated[list[str], typer.Argument(help="Regions to ask the prices of.")]) -> None:
    """Write today's on-demand prices of the catalog's types into prices.json; needs credentials.

    Exit codes: 0 written, 1 AWS did not answer, 2 a region without EKS, or no credentials.
    """
    from ops.catalog_command import update_prices

    for line in update_prices(regions):
        typer.echo(line)


@app.command(epilog="Example: eagleray preflight --regions us-east-2,us-west-2 --probe")
def preflight(
    context: Annotated[list[str] | None, typer.Option("-c", "--context", metavar="KEY=VALUE", help=
        "config=NAME or file, set=path=value,…: as for cdk, and by default what cdk would take.")] = None,
    regions: Annotated[str | None, typer.Option(metavar="A,B,…", help="Rank these regions and zones.")] = None,
    all_regions: Annotated[bool, typer.Option("--all-regions", help="Rank every region with EKS.")] = False,
    azs: Annotated[str | None, typer.Option(metavar="A,B,…", help=
        "Only these zones, by name (us-east-2a) or id (use2-az1).")] = None,
    probe: Annotated[bool, typer.Option("--probe", help=
        "Reserve the GPU nodes and cancel that at once, to know whether they are free now. Asks first.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Probe without asking.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Ask AWS what a deployment would meet: quota, zones, capacity, reservations, roles, images. Changes nothing.

    Each failure comes with the command that mends it. What the credentials may not ask is "unknown", and the
    other checks go on. Only --probe makes anything: a reservation that is cancelled within seconds, also after
    Ctrl-C, and that EC2 would end by itself.

    Exit codes: 0 ready, 1 something fails, 2 wrong input or no usable credentials, 3 nothing fails but something
    is unknown, 130 stopped by Ctrl-C, 143 by SIGTERM.
    """
    from ops.context import read_context
    from ops.preflight.command import Wanted, listed, run

    if yes and not probe:
        raise NothingToDoError("--yes answers the question of --probe; add --probe, or leave --yes out")
    wanted = Wanted(
        read_context(context or []), listed(regions), listed(azs), all_regions,
        "no" if not probe else "yes" if yes else "ask", "json" if as_json else "screen")
    raise typer.Exit(run(wanted, Console(), confirm=lambda question: typer.confirm(question, err=True)))


@app.command(epilog="Example: eagleray up --azs us-east-2a,us-east-2b,us-west-2a -- --require-approval never")
def up(
    context: Annotated[list[str] | None, typer.Option("-c", "--context", metavar="KEY=VALUE", help=
        "config=NAME or file, set=path=value,…: as for cdk, and by default what cdk would take.")] = None,
    regions: Annotated[str | None, typer.Option(metavar="A,B,…", help="Regions that will do, best first.")] = None,
    azs: Annotated[str | None, typer.Option(metavar="A,B,…", help=
        "Zones that will do, best first, by name (us-east-2a) or id (use2-az1); by default all of the region.")]
        = None,
    cdk_options: Annotated[list[str] | None, typer.Argument(metavar="-- OPTIONS", help=
        "Handed to cdk deploy, for example -- --require-approval never.")] = None,
) -> None:
    """Deploy in the first zone that has the GPUs: preflight, cdk deploy, and the next zone where one has none.

    Keeps what stands for the next attempt, says what, and remembers the zone in eagleray.placement.json, which a
    later cdk deploy reads. Stopped or failed, the same command goes on from there.

    Exit codes: 0 deployed, 1 failed for another reason than capacity, 2 wrong input or no usable credentials,
    3 no zone has the capacity, 130 stopped by Ctrl-C, 143 by SIGTERM.
    """
    from ops.context import read_context
    from ops.preflight.command import listed
    from ops.up.command import Wanted, run

    run(Wanted(read_context(context or []), listed(regions), listed(azs), tuple(cdk_options or ())), Console())
