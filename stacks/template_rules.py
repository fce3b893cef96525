"""The rules for templates, held against what this app synthesizes."""

from __future__ import annotations

import sys
from pathlib import Path

import aws_cdk as cdk

from eagleray.policy import TrainingPolicy
from stacks.aws_solutions import AwsSolutions


def hold_rules(app: cdk.App) -> None:
    """Let the rules of docs/security.md stop the app's synthesis; before its first stack is made."""
    TrainingPolicy.add_to(app)
    cdk.Validations.of(app).add_plugins(AwsSolutions(app))


def synthesize(app: cdk.App) -> Path:
    """The folder of the synthesized app; exit 1 where a rule stops it, the findings on the screen."""
    try:
        return Path(app.synth().directory)
    except RuntimeError as error:
        # Under the CDK's command line it is that which stops.
        if str(error).startswith("ValidationFailed"):
            sys.exit(1)
        raise
