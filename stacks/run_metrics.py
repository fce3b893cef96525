"""Metrics in CloudWatch, under the very names and dimensions that the trainer and the agents publish them."""

from __future__ import annotations

from aws_cdk import Duration
from aws_cdk import aws_cloudwatch as cloudwatch

from k8s.cloudwatch_agent import DIMENSION, RUN_METRICS
from k8s.releases import cloudwatch_addon
from training.metric_names import exposed

# As often as the agents look.
MINUTE = Duration.minutes(1)


def run_metric(cluster: str, name: str, statistic: str, label: str | None = None) -> cloudwatch.Metric:
    """What the run on a cluster tells (training/metric_names.py)."""
    return cloudwatch.Metric(namespace=RUN_METRICS, metric_name=exposed(name), dimensions_map={DIMENSION: cluster},
                             statistic=statistic, period=MINUTE, label=label)


def node_metric(cluster: str, name: str, statistic: str, label: str | None = None) -> cloudwatch.Metric:
    """What Container Insights tells of all nodes of a cluster (k8s/cloudwatch_addon.json)."""
    known = cloudwatch_addon()["container_insights"]
    assert name in known["metrics"], name
    return cloudwatch.Metric(namespace=known["namespace"], metric_name=name,
                             dimensions_map={known["dimension"]: cluster}, statistic=statistic, period=MINUTE,
                             label=label)
