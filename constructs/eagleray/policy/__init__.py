"""Rules for the CloudFormation templates of any app that uses these constructs, held at every synthesis."""

from eagleray.policy.finding import Finding
from eagleray.policy.rules import Rule, rules
from eagleray.policy.training_policy import TrainingPolicy

__all__ = ["Finding", "Rule", "TrainingPolicy", "rules"]
