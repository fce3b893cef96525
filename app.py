#!/usr/bin/env python3
"""The CDK app: settings in, stacks and the files of their Kubernetes objects out."""

import sys
from itertools import pairwise
from pathlib import Path

import aws_cdk as cdk

from k8s.files import write_manifests
from settings import Settings, SettingsError, load_settings
from settings.placement import PLACEMENT_FILE
from stacks.cluster_stack import ClusterStack
from stacks.manifest_check import wrong_manifests
from stacks.network_stack import NetworkStack
from stacks.platform_stack import PlatformStack
from stacks.template_rules import hold_rules, synthesize
from stacks.training_stack import TrainingStack


def build(app: cdk.App, settings: Settings) -> list[cdk.Stack]:
    """Add the stacks to the app, and write their Kubernetes objects into its folder.

    Each stack depends on the one before: they are deployed in this order and deleted in the reverse.
    """
    hold_rules(app)
    env = cdk.Environment(account=settings.account, region=settings.region)
    network = NetworkStack(app, "NetworkStack", settings=settings, env=env,
                           stack_name=f"{settings.name}-network")
    eks = ClusterStack(app, "ClusterStack", settings=settings, network=network, env=env,
                       stack_name=f"{settings.name}-cluster")
    platform = PlatformStack(app, "PlatformStack", settings=settings, cluster=eks.cluster, env=env,
                             stack_name=f"{settings.name}-platform")
    training = TrainingStack(app, "TrainingStack", settings=settings, cluster=eks.cluster, env=env,
                             stack_name=f"{settings.name}-training")
    stacks: list[cdk.Stack] = [network, eks, platform, training]
    for before, after in pairwise(stacks):
        after.add_stack_dependency(before)
    write_manifests(Path(app.outdir) / "manifests", [*platform.manifests, *training.manifests])
    return stacks


def main() -> None:
    """Read `-c config=` and `-c set=`, build, synthesize, and stop at a template or manifest that is wrong."""
    app = cdk.App()
    try:
        settings = load_settings(app.node.try_get_context("config") or "l4", app.node.try_get_context("set"),
                                 PLACEMENT_FILE, say=lambda line: print(line, file=sys.stderr))
    except SettingsError as error:
        sys.exit(str(error))
    stacks = build(app, settings)
    cdk_out = synthesize(app)
    manifests = [m for s in stacks if isinstance(s, PlatformStack | TrainingStack) for m in s.manifests]
    sys.exit(wrong_manifests(cdk_out, manifests))


if __name__ == "__main__":
    main()
