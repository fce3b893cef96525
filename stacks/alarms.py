"""Alarms for runs that cost and get nowhere."""

from __future__ import annotations

from typing import cast

from aws_cdk import ArnFormat, Stack
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_iam as iam
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sns_subscriptions as subscriptions
from constructs import Construct

from stacks.run_metrics import MINUTE, node_metric, run_metric

_IDLE_PERCENT = 5


class RunAlarms(Construct):
    """No step for long, GPUs that idle while a job trains, bytes that EFA does not carry.

    All are about a run that trains now. A run that has ended, or none, sends nothing, and that is well: missing
    data never raises an alarm.

    Attributes:
        alarms: all of them.
        topic: where they are told; None without `email`.
    """

    def __init__(self, scope: Construct, construct_id: str, *, cluster_name: str, minutes: int,
                 email: str | None) -> None:
        """`minutes`: how long it may go on before an alarm goes off; `email`: who gets a mail then."""
        super().__init__(scope, construct_id)
        self._cluster = cluster_name
        self.topic = None if email is None else self._topic(email)
        # The trainer's watchdog ends a rank that hangs sooner (training.hang), and the workers start again; this is
        # for what it does not see, and for a start that takes too long.
        no_step = self._alarm(
            "NoStep", f"No optimizer step for {minutes} minutes, though a job runs: ask eagleray diagnose",
            run_metric(cluster_name, "eagleray_step_age_seconds", "Maximum"), threshold=minutes * 60, periods=2,
            operator=cloudwatch.ComparisonOperator.GREATER_THAN_THRESHOLD)
        # A sum has a value only where both have one: idle GPUs without a run, such as those that wait for the next
        # job, are none of its business.
        while_training = cloudwatch.MathExpression(
            expression="gpu + 0 * step", label="GPU utilisation while a job trains", period=MINUTE,
            using_metrics={"gpu": node_metric(cluster_name, "node_gpu_utilization", "Average"),
                           "step": run_metric(cluster_name, "eagleray_step", "Maximum")})
        idle = self._alarm(
            "GpuIdle", f"GPUs below {_IDLE_PERCENT} % for {minutes} minutes, though a job trains: they wait for "
            "data, storage or each other (docs/tuning.md)",
            while_training, threshold=_IDLE_PERCENT, periods=minutes,
            operator=cloudwatch.ComparisonOperator.LESS_THAN_THRESHOLD)
        not_efa = self._alarm(
            "NotEfa", "Bytes between nodes do not go over EFA: eagleray transport names the rank and the reason",
            run_metric(cluster_name, "eagleray_transport_efa", "Minimum"), threshold=1, periods=3,
            operator=cloudwatch.ComparisonOperator.LESS_THAN_THRESHOLD)
        self.alarms: list[cloudwatch.IAlarm] = [no_step, idle, not_efa]

    def _topic(self, email: str) -> sns.Topic:
        topic = sns.Topic(self, "Topic", enforce_ssl=True)
        topic.add_subscription(cast(sns.ITopicSubscription, subscriptions.EmailSubscription(email)))
        # A topic with a policy of its own lets in nobody whom that does not name.
        alarms = Stack.of(self).format_arn(
            service="cloudwatch", resource="alarm", resource_name=f"{self._cluster}-*",
            arn_format=ArnFormat.COLON_RESOURCE_NAME)
        topic.add_to_resource_policy(iam.PolicyStatement(
            actions=["sns:Publish"], resources=[topic.topic_arn],
            principals=[cast(iam.IPrincipal, iam.ServicePrincipal("cloudwatch.amazonaws.com"))],
            conditions={"ArnLike": {"aws:SourceArn": alarms}}))
        return topic

    def _alarm(self, name: str, description: str, metric: cloudwatch.Metric | cloudwatch.MathExpression, *,
               threshold: float, periods: int, operator: cloudwatch.ComparisonOperator) -> cloudwatch.Alarm:
        alarm = cloudwatch.Alarm(
            self, name, alarm_name=f"{self._cluster}-{name}", alarm_description=description,
            metric=cast(cloudwatch.IMetric, metric),
            threshold=threshold, evaluation_periods=periods, datapoints_to_alarm=periods,
            comparison_operator=operator, treat_missing_data=cloudwatch.TreatMissingData.NOT_BREACHING)
        if self.topic is not None:
            tell = cast(cloudwatch.IAlarmAction, actions.SnsAction(cast(sns.ITopic, self.topic)))
            alarm.add_alarm_action(tell)
            alarm.add_ok_action(tell)
        return alarm
