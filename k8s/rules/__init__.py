"""Rules for Kubernetes manifests: manifests in, findings out. Nothing of CDK, nothing of a cluster."""

from k8s.rules.check import check
from k8s.rules.rule import RULES, Finding, Manifest, Rule
from k8s.rules.world import Node, Surroundings

__all__ = ["RULES", "Finding", "Manifest", "Node", "Rule", "Surroundings", "check"]
