"""The EKS add-on amazon-cloudwatch-observability: what it runs, and what it sends to CloudWatch.

Its CloudWatch agent runs on every node for Container Insights, with NVIDIA's DCGM exporter on GPU nodes and Fluent
Bit for the containers' logs. A second agent, one pod for the cluster, asks Ray's metrics ports for what a run tells
(training/metric_names.py): a pod in a network of its own, so that a NetworkPolicy can name it, and apart from the
first, since one agent writes the metrics of both into the same log group
(github.com/aws/amazon-cloudwatch-agent/pull/1844).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from k8s.gpu_nodes import GPU_NODES
from k8s.releases import cloudwatch_addon
from training.metric_names import GAUGES, exposed

ADDON = "amazon-cloudwatch-observability"
NAMESPACE = "amazon-cloudwatch"
SERVICE_ACCOUNT = "cloudwatch-agent"
"""Of both agents and of Fluent Bit."""

METRICS_PORT = 8080
"""On which Ray serves metrics in every pod that KubeRay makes (KubeRay 1.7.0, constant.go: DefaultMetricsPort)."""
RUN_METRICS = "EagleRay"
"""CloudWatch's namespace of what a run tells; its one dimension is DIMENSION."""
DIMENSION = "ClusterName"
LOG_GROUPS = tuple(cloudwatch_addon()["log_groups"])
"""Below /aws/containerinsights/<cluster>/. Agents would make them themselves, and keep their logs for ever."""

_NODE_AGENT, _SCRAPER, _JOB = "cloudwatch-agent", "eagleray-scraper", "eagleray"
SCRAPER = {
    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}},
    # As the agent's operator labels its pods (3.6.0, manifestutils/labels.go).
    "podSelector": {"matchLabels": {"app.kubernetes.io/component": "amazon-cloudwatch-agent",
                                    "app.kubernetes.io/instance": f"{NAMESPACE}.{_SCRAPER}"}},
}
"""The pod that reads the metrics ports, as a NetworkPolicy names it."""
_UNITS = {"_seconds": "Seconds", "_bytes": "Bytes"}

# The chart asks for 250m for each agent, more than the system node has beside the Ray head.
_AGENT = {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"cpu": "500m", "memory": "512Mi"}}
_SCRAPING = {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"cpu": "200m", "memory": "256Mi"}}
_FLUENT_BIT = {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"cpu": "500m", "memory": "250Mi"}}
_DCGM = {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"cpu": "500m", "memory": "750Mi"}}
_OPERATOR = {"requests": {"cpu": "50m", "memory": "64Mi"}}


def addon_configuration(*, cluster: str, region: str, ray_namespace: str, instance_type: str) -> dict[str, Any]:
    """The add-on's configuration values for a cluster whose GPU nodes are of `instance_type`.

    Its schema: `aws eks describe-addon-configuration --addon-name … --addon-version …`.
    """
    return {
        "tolerations": [{"operator": "Exists"}],  # else no agent on tainted GPU nodes
        "containerInsights": {"enabled": True},
        "applicationSignals": {"enabled": False},  # would put agents of its own into our pods
        "containerLogs": {"enabled": True, "fluentBit": {"resources": _FLUENT_BIT}},
        "dcgmExporter": {"enabled": True, "resources": _DCGM, **_dcgm_nodes(instance_type)},
        "neuronMonitor": {"enabled": False},
        "manager": {"resources": _OPERATOR},
        "agents": [
            {"name": _NODE_AGENT, "resources": _AGENT},
            {
                "name": _SCRAPER, "mode": "deployment", "hostNetwork": False, "resources": _SCRAPING,
                "tolerations": [],  # it has no business on a GPU node
                # It is not to ask the node's metadata service, which is closed to pods.
                "env": [{"name": "RUN_WITH_IRSA", "value": "True"}],
                "config": _agent_config(cluster, region),
                "prometheus": {"config": _scrape_config(cluster, ray_namespace)},
            },
        ],
    }


def requests_on(configuration: Mapping[str, Any], *, gpus: int) -> list[dict[str, str]]:
    """What each of the add-on's pods on a node with that many GPUs asks for; its single pods are on one without."""
    node_agent, *single_agents = configuration["agents"]
    pods = [node_agent, configuration["containerLogs"]["fluentBit"]]
    pods += [configuration["dcgmExporter"]] if gpus else [configuration["manager"], *single_agents]
    return [pod["resources"]["requests"] for pod in pods]


def _dcgm_nodes(instance_type: str) -> dict[str, Any]:
    """The exporter goes to the types that its chart lists; to nodes of any other by the label of our nodegroup."""
    if instance_type in cloudwatch_addon()["dcgm_exporter_types"]:
        return {}
    expressions = [{"key": key, "operator": "In", "values": [value]} for key, value in GPU_NODES.items()]
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": expressions}]}}}}


def _agent_config(cluster: str, region: str) -> dict[str, Any]:
    """The scraping agent's own (CloudWatch user guide, ContainerInsights-Prometheus-Setup-configure)."""
    names = {name: exposed(name) for name in GAUGES}
    return {"agent": {"region": region}, "logs": {"metrics_collected": {"prometheus": {
        "cluster_name": cluster,
        "log_group_name": f"/aws/containerinsights/{cluster}/prometheus",
        "prometheus_config_path": "/etc/prometheusconfig/prometheus.yaml",
        "emf_processor": {
            "metric_namespace": RUN_METRICS,
            "metric_unit": {shown: unit for name, shown in names.items() for end, unit in _UNITS.items()
                            if name.endswith(end)},
            # Not by run: each further dimension is a metric that bills.
            "metric_declaration": [{"source_labels": ["job"], "label_matcher": f"^{_JOB}$",
                                    "dimensions": [[DIMENSION]],
                                    "metric_selectors": [f"^{shown}$" for shown in names.values()]}],
        },
    }}}}


def _scrape_config(cluster: str, ray_namespace: str) -> dict[str, Any]:
    """Prometheus' configuration: every minute all workers of the Ray cluster, of whom rank 0 tells of the run."""
    label = "__meta_kubernetes_pod_label_ray_io_"
    return {
        "global": {"scrape_interval": "1m", "scrape_timeout": "10s"},
        "scrape_configs": [{
            "job_name": _JOB,
            "kubernetes_sd_configs": [{"role": "pod", "namespaces": {"names": [ray_namespace]}}],
            "relabel_configs": [
                {"source_labels": [f"{label}cluster"], "regex": cluster, "action": "keep"},
                {"source_labels": [f"{label}node_type"], "regex": "worker", "action": "keep"},
                {"source_labels": ["__meta_kubernetes_pod_ip"], "replacement": f"$1:{METRICS_PORT}",
                 "target_label": "__address__"},
            ],
            "metric_relabel_configs": [
                {"source_labels": ["__name__"], "regex": exposed("eagleray_step").removesuffix("step") + ".*",
                 "action": "keep"},
                {"regex": "otel_scope_.*|SessionName|WorkerId|Component|Version", "action": "labeldrop"},
            ],
        }],
    }
