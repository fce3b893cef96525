"""One screen for a cluster and the run on it."""

from __future__ import annotations

from collections.abc import Sequence

from aws_cdk import Duration, Stack
from aws_cdk import aws_cloudwatch as cloudwatch
from constructs import Construct

from stacks.run_metrics import node_metric, run_metric


class TrainingDashboard(Construct):
    """Progress and speed above, what the hardware does below, alarms first.

    A run's metrics are gauges of one process, of which a minute has a value or none: between two runs the lines are
    broken.

    Attributes:
        link: to it, in the console.
    """

    def __init__(self, scope: Construct, construct_id: str, *, cluster_name: str,
                 alarms: Sequence[cloudwatch.IAlarm]) -> None:
        super().__init__(scope, construct_id)
        dashboard = cloudwatch.Dashboard(self, "Dashboard", dashboard_name=f"{cluster_name}-training",
                                         default_interval=Duration.hours(3))
        region = Stack.of(self).region
        self.link = (f"https://{region}.console.aws.amazon.com/cloudwatch/home?region={region}#dashboards:name="
                     f"{cluster_name}-training")
        self._cluster = cluster_name
        dashboard.add_widgets(cloudwatch.AlarmStatusWidget(title="Alarms", alarms=list(alarms), width=24, height=3))
        dashboard.add_widgets(
            self._run("Steps done", "eagleray_step"),
            self._run("Loss", "eagleray_loss"),
            self._run("Tokens a second", "eagleray_tokens_per_second"),
            self._run("Model FLOP/s utilisation (1 is the GPUs' peak)", "eagleray_mfu_ratio"))
        dashboard.add_widgets(
            self._run("Seconds of a step, and of it for data", "eagleray_step_seconds",
                      "eagleray_data_wait_seconds"),
            self._run("Seconds since the last step and checkpoint", "eagleray_step_age_seconds",
                      "eagleray_checkpoint_age_seconds"),
            self._run("Restarts, skipped steps", "eagleray_restarts", "eagleray_skipped_steps"),
            self._run("Bytes between nodes over EFA (1) or not (0)", "eagleray_transport_efa"))
        dashboard.add_widgets(
            self._nodes("GPU utilisation (%)", "Average", "node_gpu_utilization"),
            self._nodes("GPU memory (%)", "Average", "node_gpu_memory_utilization"),
            self._nodes("EFA bytes a second, all nodes", "Sum", "node_efa_rx_bytes", "node_efa_tx_bytes"),
            self._nodes("Nodes, the system's too", "Maximum", "cluster_node_count"))
        dashboard.add_widgets(
            self._run("Gradient norm", "eagleray_gradient_norm"),
            self._run("GPU memory of rank 0, highest (bytes)", "eagleray_gpu_memory_bytes"),
            self._run("Seconds that a checkpoint took", "eagleray_checkpoint_seconds"),
            self._nodes("GPU temperature (°C)", "Maximum", "node_gpu_temperature"))

    def _run(self, title: str, *names: str) -> cloudwatch.GraphWidget:
        return _graph(title, [run_metric(self._cluster, name, "Maximum", name.removeprefix("eagleray_"))
                              for name in names])

    def _nodes(self, title: str, statistic: str, *names: str) -> cloudwatch.GraphWidget:
        return _graph(title, [node_metric(self._cluster, name, statistic, name) for name in names])


def _graph(title: str, metrics: Sequence[cloudwatch.Metric]) -> cloudwatch.GraphWidget:
    return cloudwatch.GraphWidget(title=title, left=list(metrics), width=6, height=6)
