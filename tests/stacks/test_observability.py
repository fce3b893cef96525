"""What watches the cluster, when it is wanted: agents, log groups, dashboard, alarms, all under the same names."""

import json
import re

import pytest
from aws_cdk import App, Stack

from k8s.cloudwatch_agent import METRICS_PORT, addon_configuration, requests_on
from k8s.releases import cloudwatch_addon, cloudwatch_addon_version
from k8s.rules.nodes import around_app
from k8s.rules.quantity import amount
from k8s.rules.reach import End, may_reach
from settings import SettingsError, load_settings
from stacks.alarms import RunAlarms
from training.metric_names import GAUGES, exposed

STACK, ADDON = "PlatformStack", "amazon-cloudwatch-observability"
ALARM, GROUP = "AWS::CloudWatch::Alarm", "AWS::Logs::LogGroup"


@pytest.fixture(scope="module")
def observed(synth_changed):
    return synth_changed


@pytest.fixture(scope="module")
def addon(observed):
    return observed.only(STACK, "AWS::EKS::Addon", AddonName=ADDON)


@pytest.fixture(scope="module")
def configuration(addon):
    return json.loads(addon["ConfigurationValues"])


@pytest.fixture(scope="module")
def scraper(configuration):
    return configuration["agents"][1]


@pytest.fixture(scope="module")
def dashboard(observed):
    """Its body, with a text in place of what only AWS knows."""
    parts = observed.only(STACK, "AWS::CloudWatch::Dashboard")["DashboardBody"]["Fn::Join"][1]
    return json.loads("".join(part if isinstance(part, str) else "known-to-aws" for part in parts))


def alarms(synth):
    return {r["Properties"]["AlarmName"].rpartition("-")[2]: r["Properties"]
            for r in synth.resources(STACK, ALARM).values()}


# Off, and on

def test_it_is_off_unless_wanted_for_it_costs(synth_l4):
    for kind in ("AWS::CloudWatch::Dashboard", ALARM, "AWS::SNS::Topic", GROUP, "AWS::EKS::Addon"):
        assert not synth_l4.resources(STACK, kind)
    assert not [m for m in synth_l4.manifests if m["metadata"]["name"].endswith("-metrics")]


def test_the_version_is_one_for_the_clusters_kubernetes(observed, addon):
    kubernetes = observed.only("ClusterStack", "AWS::EKS::Cluster")["Version"]
    assert addon["AddonVersion"] == cloudwatch_addon_version(kubernetes) == "v6.4.0-eksbuild.1"
    with pytest.raises(ValueError, match=r"Kubernetes 1\.29; add its version to k8s/cloudwatch_addon\.json"):
        cloudwatch_addon_version("1.29")


def test_the_agents_have_their_permissions_and_log_groups_before_they_start(observed):
    resources = observed.templates[STACK].to_json()["Resources"]
    (after,) = [r["DependsOn"] for r in resources.values()
                if r["Type"] == "AWS::EKS::Addon" and r["Properties"]["AddonName"] == ADDON]
    kinds = sorted(resources[name]["Type"] for name in after)
    assert kinds.count(GROUP) == 5
    assert "AWS::EKS::PodIdentityAssociation" in kinds
    identity = observed.only(STACK, "AWS::EKS::PodIdentityAssociation", Namespace="amazon-cloudwatch")
    assert identity["ServiceAccount"] == "cloudwatch-agent"
    role = resources[identity["RoleArn"]["Fn::GetAtt"][0]]["Properties"]
    assert "CloudWatchAgentServerPolicy" in json.dumps(role["ManagedPolicyArns"])
    assert "Policies" not in role


def test_its_logs_are_kept_for_the_days_of_the_settings_and_go_with_the_stack(observed):
    groups = observed.resources(STACK, GROUP).values()
    assert {g["Properties"]["LogGroupName"].removeprefix("/aws/containerinsights/eagleray/") for g in groups} == {
        "application", "dataplane", "host", "performance", "prometheus"}
    assert {(g["Properties"]["RetentionInDays"], g["DeletionPolicy"]) for g in groups} == {(7, "Delete")}


@pytest.mark.long
@pytest.mark.parametrize("config", ["l4", "h100", "local"])
def test_every_preset_passes_all_rules_with_and_without_it(synth, config):
    for enabled in (False, True):
        addons = synth(config, f"observability.enabled={str(enabled).lower()}").resources(STACK, "AWS::EKS::Addon")
        assert len(addons) == enabled


# Where the agents run

def test_agents_run_on_gpu_nodes_in_spite_of_their_taint_and_the_scraper_does_not(configuration, scraper):
    assert configuration["tolerations"] == [{"operator": "Exists"}]
    assert scraper["tolerations"] == []
    assert configuration["dcgmExporter"]["enabled"] is True
    assert configuration["applicationSignals"]["enabled"] is False


def test_gpus_that_the_exporters_chart_does_not_know_are_found_by_our_label():
    known, unknown = (addon_configuration(cluster="c", region="us-east-2", ray_namespace="ray", instance_type=one)
                      for one in ("g6.12xlarge", "g7e.48xlarge"))
    assert "affinity" not in known["dcgmExporter"]
    assert '{"key": "nvidia.com/gpu.present", "operator": "In", "values": ["true"]}' in json.dumps(
        unknown["dcgmExporter"]["affinity"])


def test_eagleray_check_counts_what_the_agents_take_of_each_node(observed, synth_l4, configuration):
    plain = {node.gpus > 0: node for node in around_app(synth_l4.outdir).nodes}
    watched = {node.gpus > 0: node for node in around_app(observed.outdir).nodes}
    assert plain[False].cpu_m - watched[False].cpu_m == 250  # two agents, Fluent Bit, the operator
    assert plain[False].memory_mib - watched[False].memory_mib == 384
    on_gpus = requests_on(configuration, gpus=8)
    assert watched[True].cpu_m == 191450 - 1000 * sum(amount(one["cpu"]) or 0 for one in on_gpus)


def test_the_one_system_node_has_room_for_the_head_two_jobs_operators_and_agents(synth_l4, configuration):
    (cluster,) = [m["spec"] for m in synth_l4.manifests if m["kind"] == "RayCluster"]
    (job,) = [m["spec"] for m in synth_l4.manifests if m["kind"] == "RayJob"]
    submitter = job["submitterPodTemplate"]["spec"]["containers"][0]["resources"]["requests"]
    charts = [json.loads(r["Properties"]["Values"])["resources"]["requests"]
              for r in synth_l4.resources(STACK, "Custom::AWSCDK-EKS-HelmChart").values()]
    asked = [cluster["headGroupSpec"]["template"]["spec"]["containers"][0]["resources"]["requests"],
             cluster["autoscalerOptions"]["resources"]["requests"], submitter, submitter, *charts,
             *requests_on(configuration, gpus=0)]
    # EKS's own add-ons, by their manifests: two of coredns, kube-proxy, vpc-cni with its policy agent.
    of_eks = {"cpu": 2 * 0.1 + 0.1 + 0.05, "memory": 2 * 70 * 2**20}
    node = next(node for node in around_app(synth_l4.outdir).nodes if not node.gpus)
    for name in ("cpu", "memory"):
        assert sum(amount(one[name]) or 0 for one in asked) + of_eks[name] <= node.gives[name]


# One source of names

def published(configuration):
    """(namespace, name, dimensions) of all that the agents send: the trainer's, and Container Insights' own."""
    config = configuration["agents"][1]["config"]["logs"]["metrics_collected"]["prometheus"]
    emf, port = config["emf_processor"], [exposed(name) for name in GAUGES]
    found = {(emf["metric_namespace"], name, tuple(dimensions))
             for one in emf["metric_declaration"] for selector in one["metric_selectors"]
             for name in port if re.search(selector, name) for dimensions in one["dimensions"]}
    known = cloudwatch_addon()["container_insights"]
    return found | {(known["namespace"], name, (known["dimension"],)) for name in known["metrics"]}


def shown(widget):
    for namespace, name, dimension, value, _ in widget["properties"].get("metrics", []):
        assert value == "eagleray"
        yield namespace, name, (dimension,)


def asked_by(alarm):
    stats = [one["MetricStat"]["Metric"] for one in alarm.get("Metrics", []) if "MetricStat" in one]
    for metric in stats or [alarm]:
        assert [one["Value"] for one in metric["Dimensions"]] == ["eagleray"]
        yield metric["Namespace"], metric["MetricName"], tuple(one["Name"] for one in metric["Dimensions"])


def test_the_dashboard_shows_everything_that_is_published_and_nothing_else(dashboard, configuration):
    assert {metric for widget in dashboard["widgets"] for metric in shown(widget)} == published(configuration)


def test_alarms_look_at_what_is_published(observed, configuration):
    for alarm in alarms(observed).values():
        assert set(asked_by(alarm)) <= published(configuration)


def test_the_names_on_the_port_pass_the_scrapers_filter_and_rays_own_do_not(scraper):
    (job,) = scraper["prometheus"]["config"]["scrape_configs"]
    keep, drop = job["metric_relabel_configs"]
    assert (keep["source_labels"], keep["action"]) == (["__name__"], "keep")
    assert all(re.fullmatch(keep["regex"], exposed(name)) for name in GAUGES)
    assert not re.fullmatch(keep["regex"], "ray_node_cpu_utilization")
    assert drop["action"] == "labeldrop"
    assert not re.fullmatch(drop["regex"], "run")


# Scraping

def test_the_scraper_asks_the_workers_of_this_cluster_each_minute(observed, scraper):
    (job,) = scraper["prometheus"]["config"]["scrape_configs"]
    (cluster,) = [m for m in observed.manifests if m["kind"] == "RayCluster"]
    assert job["kubernetes_sd_configs"][0]["namespaces"]["names"] == [cluster["metadata"]["namespace"]]
    labels = {"__meta_kubernetes_pod_label_ray_io_cluster": cluster["metadata"]["name"],
              "__meta_kubernetes_pod_label_ray_io_node_type": "worker"}
    kept = {one["source_labels"][0]: one["regex"] for one in job["relabel_configs"] if one.get("action") == "keep"}
    assert kept == labels
    assert job["relabel_configs"][-1]["replacement"] == f"$1:{METRICS_PORT}"


def test_the_metrics_port_is_open_to_the_scraper_alone_and_on_workers_alone(observed):
    policies = [m for m in observed.manifests if m["kind"] == "NetworkPolicy"]
    pods = {"ray.io/cluster": "eagleray"}
    worker = End("10.0.1.5", "ray", {**pods, "ray.io/node-type": "worker"})
    head = End("10.0.1.4", "ray", {**pods, "ray.io/node-type": "head"})
    labels = {"app.kubernetes.io/component": "amazon-cloudwatch-agent",
              "app.kubernetes.io/instance": "amazon-cloudwatch.eagleray-scraper"}
    agent = End("10.0.1.30", "amazon-cloudwatch", labels)
    assert may_reach(policies, agent, worker, METRICS_PORT)
    for source, target, port in ((agent, worker, 6379), (agent, head, METRICS_PORT), (agent, head, 8265),
                                 (End("10.0.1.31", "default", labels), worker, METRICS_PORT),
                                 (End("10.0.1.32", "amazon-cloudwatch", {}), worker, METRICS_PORT),
                                 (End("10.0.200.1"), worker, METRICS_PORT)):
        assert not may_reach(policies, source, target, port)


# Alarms

def test_no_run_and_a_run_that_has_ended_raise_no_alarm(observed):
    assert alarms(observed).keys() == {"NoStep", "GpuIdle", "NotEfa"}
    for alarm in alarms(observed).values():
        assert alarm["TreatMissingData"] == "notBreaching"
        assert alarm["EvaluationPeriods"] == alarm["DatapointsToAlarm"]


def test_no_step_for_the_minutes_of_the_settings(observed):
    alarm = alarms(observed)["NoStep"]
    assert (alarm["MetricName"], alarm["Threshold"], alarm["ComparisonOperator"]) == (
        exposed("eagleray_step_age_seconds"), 20 * 60, "GreaterThanThreshold")


def test_gpus_idle_only_counts_while_a_run_tells_its_step(observed):
    alarm = alarms(observed)["GpuIdle"]
    (expression,) = [one["Expression"] for one in alarm["Metrics"] if one["ReturnData"]]
    assert expression == "gpu + 0 * step"  # CloudWatch has no sum where one of both is missing
    assert {one["Id"]: one["MetricStat"]["Metric"]["MetricName"] for one in alarm["Metrics"] if "MetricStat" in one
            } == {"gpu": "node_gpu_utilization", "step": exposed("eagleray_step")}
    assert (alarm["EvaluationPeriods"], alarm["ComparisonOperator"]) == (20, "LessThanThreshold")


def test_a_wire_that_is_not_efa_raises_an_alarm_whatever_the_settings_allow(observed):
    alarm = alarms(observed)["NotEfa"]
    assert (alarm["MetricName"], alarm["Statistic"], alarm["Threshold"], alarm["ComparisonOperator"]) == (
        exposed("eagleray_transport_efa"), "Minimum", 1, "LessThanThreshold")


def test_alarms_reach_the_address_of_the_settings_and_come_from_our_alarms_alone(observed):
    (topic,) = observed.resources(STACK, "AWS::SNS::Topic")
    mail = observed.only(STACK, "AWS::SNS::Subscription")
    assert (mail["Protocol"], mail["Endpoint"], mail["TopicArn"]) == ("email", "team@example.com", {"Ref": topic})
    for alarm in alarms(observed).values():
        assert alarm["AlarmActions"] == alarm["OKActions"] == [{"Ref": topic}]
    statements = observed.only(STACK, "AWS::SNS::TopicPolicy")["PolicyDocument"]["Statement"]
    (allowed,) = [one for one in statements if one["Effect"] == "Allow"]
    assert allowed["Principal"] == {"Service": "cloudwatch.amazonaws.com"}
    assert "alarm:eagleray-*" in json.dumps(allowed["Condition"])


def test_without_an_address_alarms_tell_nobody_and_are_there():
    stack = Stack(App(), "S")
    made = RunAlarms(stack, "Alarms", cluster_name="wings", minutes=5, email=None)
    assert made.topic is None
    assert len(made.alarms) == 3


@pytest.mark.parametrize(("written", "expected"), [
    ("observability.alarm_email=a@b.example", "alarm_email is set, and there are no alarms without observab"),
    ("observability.enabled=true,observability.alarm_email=nobody", "nobody is not an e-mail address; it looks"),
    ("observability.enabled=true,observability.alarm_minutes=1", "observability.alarm_minutes"),
    ("observability.enable=true", "did you mean observability.enabled?"),
    ("observability=true", "observability"),
])
def test_a_wrong_setting_is_one_clear_error(written, expected):
    with pytest.raises(SettingsError, match=re.escape(expected)):
        load_settings("l4", written)
