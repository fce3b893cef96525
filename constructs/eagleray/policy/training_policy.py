"""The rules as a plugin of CDK's validation."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import aws_cdk as cdk
import jsii

from eagleray.policy.finding import Finding
from eagleray.policy.rules import rego, rules
from eagleray.policy.whole_app import StackTemplate, WholeApp

# Without it CDK makes of every finding of its own engine a warning.
_ERRORS_STOP = "@aws-cdk/core:validateAgainstDefaultRules"


@jsii.implements(cdk.IPolicyValidationContext)
class _Joined:
    """Joined templates, as CDK's engine wants to be told of them."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._stacks = [cdk.PolicyValidationStack(stack_construct_path="", template_path=str(file))
                        for file in files]

    @property
    def app_construct(self) -> cdk.App:
        return cdk.App()

    @property
    def stack_templates(self) -> list[cdk.PolicyValidationStack]:
        return self._stacks

    @property
    def template_paths(self) -> list[str]:
        return [stack.template_path for stack in self._stacks]

    @property
    def account_id(self) -> None:
        return None

    @property
    def region(self) -> None:
        return None


class TrainingPolicy(cdk.CloudFormationValidatePlugin):
    """Rules for GPU nodes with EFA, their cluster, buckets and roles, held against all stacks of an app together.

    `TrainingPolicy.add_to(app)` is all that an app needs. It takes the place of the engine that CDK runs
    on templates by itself, and brings that engine's own rules along: a second engine would double its seconds.
    A finding that is meant to be is acknowledged on its construct, with a reason:
    `Validations.of(construct).acknowledge(Acknowledgment(id="CloudFormation-Validate::api-logs", reason="…"))`.
    """

    def __init__(self) -> None:
        super().__init__(rego_rules=[cdk.ValidationRuleSource(name=name, content=content)
                                     for name, content in rego().items()])

    @classmethod
    def add_to(cls, app: cdk.App) -> TrainingPolicy:
        """Hold the rules at every synthesis of `app`, which a finding then stops; before its first stack is made.

        Raises:
            ValueError: the app has stacks already.
        """
        if not app.node.try_get_context(_ERRORS_STOP):
            if app.node.children:
                raise ValueError("TrainingPolicy.add_to(app) comes before the app's first stack")
            app.node.set_context(_ERRORS_STOP, True)
        policy = cls.engine()
        cdk.Validations.of(app).add_plugins(policy)
        return policy

    @classmethod
    @cache
    def engine(cls) -> TrainingPolicy:
        """The one of this process. It holds nothing of an app, and to compile its rules takes seconds."""
        return cls()

    @jsii.member(jsii_name="validate")
    def validate(self, context: cdk.IPolicyValidationContext) -> cdk.PolicyValidationPluginReport:
        """CDK's own rules on each template, and ours on all of them together."""
        stacks = [StackTemplate(stack.stack_construct_path, stack.template_path,
                                json.loads(Path(stack.template_path).read_text(encoding="utf-8")))
                  for stack in context.stack_templates]
        theirs = [found for found in super().validate(context).violations if found.rule_name not in rules()]
        ours = [_violation(finding) for finding in self.findings(stacks)[0]]
        stops = bool(ours) or any(found.severity in ("error", "fatal") for found in theirs)
        return cdk.PolicyValidationPluginReport(success=not stops, violations=[*ours, *theirs])

    def findings(self, *apps: Sequence[StackTemplate]) -> list[list[Finding]]:
        """What is wrong with each of several apps, given as the templates of their stacks."""
        whole = [WholeApp(stacks) for stacks in apps]
        with tempfile.TemporaryDirectory() as folder:
            files = [Path(folder) / f"{i}.json" for i in range(len(whole))]
            for file, app in zip(files, whole, strict=True):
                file.write_text(json.dumps(app.template), encoding="utf-8")
            report = super().validate(_Joined(files))
        found: list[set[Finding]] = [set() for _ in whole]
        for violation in report.violations:
            if violation.rule_name in rules():
                for place in violation.violating_resources:
                    i = int(Path(str(place.template_path)).stem)
                    found[i].add(_finding(whole[i], violation, place))
        return [sorted(one, key=str) for one in found]


def _finding(app: WholeApp, violation: cdk.PolicyViolation, place: cdk.PolicyViolatingResource) -> Finding:
    stack, logical_id, construct = app.origin(str(place.resource_logical_id))
    where = place.locations[0].removeprefix("Properties.")
    problem = violation.description.removeprefix(f"{where}: ")
    return Finding(violation.rule_name, construct, where, problem, stack.file, logical_id)


def _violation(finding: Finding) -> cdk.PolicyViolation:
    place = cdk.PolicyViolatingResource(
        resource_logical_id=finding.logical_id, template_path=finding.template,
        locations=[f"Properties.{finding.property}"])
    return cdk.PolicyViolation(rule_name=finding.rule, description=str(finding), severity="error",
                               violating_resources=[place])
