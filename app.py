#!/usr/bin/env python3
"""The CDK app: settings in, stacks out."""

import sys

import aws_cdk as cdk

from settings import Settings, SettingsError, load_settings
from stacks.cluster_stack import ClusterStack
from stacks.network_stack import NetworkStack


def build(app: cdk.App, settings: Settings) -> list[cdk.Stack]:
    """Add the stacks to the app, each after the one it stands on."""
    env = cdk.Environment(account=settings.account, region=settings.region)
    network = NetworkStack(app, "NetworkStack", settings=settings, env=env,
                           stack_name=f"{settings.name}-network")
    cluster = ClusterStack(app, "ClusterStack", settings=settings, network=network, env=env,
                           stack_name=f"{settings.name}-cluster")
    cluster.add_stack_dependency(network)
    return [network, cluster]


def main() -> None:
    """Read `-c config=` and `-c set=`, build, synthesize."""
    app = cdk.App()
    try:
        settings = load_settings(app.node.try_get_context("config") or "l4", app.node.try_get_context("set"))
    except SettingsError as error:
        sys.exit(str(error))
    build(app, settings)
    app.synth()


if __name__ == "__main__":
    main()
