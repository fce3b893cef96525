"""A settings file is either good or refused with a line that says which setting, what is wrong, what works."""

import json

import pytest
import yaml
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from eagleray import catalog
from settings import Settings, SettingsError, load_settings
from settings.loading import CONFIG_DIR
from training.config import TrainJob

_BLOCK = "gpu.instance_type=p5.48xlarge,gpu.capacity={kind: capacity-block, id: cr-12345678"
CONFIGS = sorted(path.stem for path in CONFIG_DIR.glob("*.yaml"))


def refusal(overrides=None, config="l4"):
    with pytest.raises(SettingsError) as error:
        load_settings(config, overrides)
    return str(error.value)


@pytest.mark.parametrize("config", CONFIGS)
def test_every_config_that_we_ship_is_good(config):
    assert isinstance(load_settings(config), Settings)


def test_the_default_is_the_shape_of_the_aws_sample():
    s = load_settings()
    assert (s.system.instance_type, s.system.nodes) == ("m7i.xlarge", 1)
    assert (s.gpu.instance_type, s.gpu.nodes, s.gpu.instance.gpus, s.gpu.instance.efa) == ("g6.12xlarge", 2, 4, 1)
    assert (s.gpu.cpu, s.gpu.memory_gib, s.gpu.volume_gib) == (40, 160, 200)
    assert s.train_job("s3://b/runs").placement.world_size == 8
    assert s.training.model.name == "Qwen/Qwen2.5-1.5B"
    assert s.training.data.kind == "random"
    assert s.cluster.version == "1.36"
    assert s.cluster.api_cidrs == []


def test_the_api_opens_to_the_world_by_the_words_alone():
    assert load_settings("l4", "cluster.api_cidrs=[open-to-the-world]").cluster.api_is_open
    assert not load_settings("l4", "cluster.api_cidrs=[20.0.0.0/9, 20.0.0.0/16, 20.128.0.0/9]").cluster.api_is_open


def test_h100_has_32_efa_interfaces_and_16_workers():
    s = load_settings("h100")
    assert (s.gpu.instance_type, s.gpu.instance.efa) == ("p5.48xlarge", 32)
    assert s.train_job("s3://b/runs").placement.world_size == 16


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        ("gpu.nodes=0", ["set=gpu.nodes=0", "gpu.nodes = 0", "1 or more"]),
        ("gpu.nodes=two", ["gpu.nodes = two", "whole number"]),
        ("training.tokens=1e9,training.steps=50", ["steps and tokens both say how long"]),
        ("training.tokens=1.5", ["training.tokens = 1.5", "whole number"]),
        ("gpu.nodez=3", ["unknown setting gpu.nodez", "did you mean gpu.nodes?"]),
        ("training.optimizer.lerning_rate=1", ["did you mean training.optimizer.learning_rate?"]),
        ("zzz=1", ["unknown setting zzz", "settings here: name, account, region"]),
        ("gpu.instance_type=g6.xlarge", ["g6.xlarge has no EFA", "g6.12xlarge"]),
        ("gpu.instance_type=m7i.xlarge", ["m7i.xlarge has no GPU", "use for example"]),
        ("gpu.instance_type=g6.12xlrge", ["not in the instance catalog", "g6.12xlarge"]),
        ("system.instance_type=g6.12xlarge", ["g6.12xlarge has GPUs", "m7i.xlarge"]),
        ("network.zone=us-east-1a", ["set=network.zone=us-east-1a", "not a zone of region us-east-2"]),
        ("network.zone=use2-az1", ["id of a zone", "eagleray preflight --azs use2-az1"]),
        ("network.second_zone=us-east-2a", ["same as network.zone", "us-east-2b"]),
        ("network.spare_zones=[us-east-1c]", ["network.spare_zones us-east-1c", "us-east-2"]),
        ("region=us-east-9", ["not a region with EKS", "did you mean us-east-"]),
        ("network.cidr=10.0.0.0/28", ["/28", "/16 to /22"]),
        ("network.cidr=8.8.0.0/16", ["not a private range"]),
        ("network.cidr=ten", ["not an address range"]),
        ("cluster.version='1.30'", ["EKS no longer creates 1.30", "1.36"]),
        ("cluster.version=1.30", ["put it in quotes"]),
        ("cluster.version='1.99'", ["1.99 is not a version", "1.36"]),
        ("cluster.version='1.35'", ["does not match the kubectl layer v36", '"1.36"']),
        ("cluster.kubectl_layer=v30", ["kubectl layer v36 only", "1.36"]),
        ("cluster.api_cidrs=[0.0.0.0/0]",
         ["0.0.0.0/0 opens the cluster's API to the world", "203.0.113.7/32", "[open-to-the-world]"]),
        ("cluster.api_cidrs=[203.0.113.7/32, 64.0.0.0/2]", ["64.0.0.0/2 opens the cluster's API to the world"]),
        ("cluster.api_cidrs=[20.0.0.0/9, 20.128.0.0/9, 8.8.8.8/32]",
         ["20.0.0.0/9, 20.128.0.0/9, 8.8.8.8/32 together open the cluster's API", "[open-to-the-world]"]),
        ("cluster.api_cidrs=['::/0']", ["::/0 is an IPv6 range", "203.0.113.7/32"]),
        ("cluster.api_cidrs=[1.2.3]", ["not an address range", "203.0.113.7/32"]),
        ("cluster.api_cidrs=[203.0.113.7/24]", ["host bits", "203.0.113.7/32"]),
        ("cluster.api_cidrs=[open-to-the-wrld]", ["open-to-the-wrld is not an address range"]),
        ("cluster.api_cidrs=open-to-the-world", ["cluster.api_cidrs = open-to-the-world", "list"]),
        ("cluster.api_cidrs=[203.0.113.7/32, open-to-the-world]", ["a range beside it means nothing"]),
        ("cluster.admin_arns=[me]", ["not the ARN of a role or user", "arn:aws:iam::"]),
        ("cluster.admin_arns=[arn:aws:sts::123456789012:assumed-role/A/b]", ["is a session; name its role"]),
        ("gpu.worker_cpu=48", ["worker_cpu 48 does not fit g6.12xlarge", "use 47 or less"]),
        ("gpu.worker_memory_gib=192", ["does not fit g6.12xlarge", "use 173 or less"]),
        ("gpu.capacity.kind=spotty", ["kind must be one of", "'on-demand'"]),
        ("gpu.capacity.kind=reservation", ["gpu.capacity.id is missing"]),
        ("gpu.capacity.kind=reservation,gpu.capacity.id=abc", ["gpu.capacity.id = abc", "^cr-"]),
        ("gpu.capacity.id=cr-12345678", ["gpu.capacity: kind is missing"]),
        ("gpu.capacity={kind: on-demand, idd: cr-12345678}", ["unknown setting gpu.capacity.idd"]),
        ("gpu.capacity={kind: on-demand, id: cr-12345678}",
         ["gpu.capacity.id does not go with kind on-demand", "kind reservation or capacity-block"]),
        ("gpu.capacity={kind: spot, id: cr-12345678}", ["gpu.capacity.id does not go with kind spot"]),
        ("gpu.capacity={kind: spot, placement_group: g}",
         ["gpu.capacity.placement_group does not go with kind spot", "kind reservation"]),
        ("gpu.capacity={kind: reservation, id: cr-12345678, hours: 3}",
         ["gpu.capacity.hours does not go with kind reservation", "kind reserve"]),
        ("gpu.capacity={kind: on-demand, starts: 2026-12-10T11:30:00Z}",
         ["gpu.capacity.starts does not go with kind on-demand", "kind capacity-block"]),
        ("gpu.capacity.kind=reserve", ["gpu.capacity.hours is missing", "Hours until the reservation ends"]),
        ("gpu.capacity={kind: reserve, hours: 0}", ["gpu.capacity.hours = 0", "1 or more"]),
        ("gpu.capacity={kind: reserve, hours: 1000}", ["gpu.capacity.hours = 1000", "720 or less"]),
        ("gpu.capacity={kind: reserve, hours: 3, id: cr-12345678}",
         ["gpu.capacity.id does not go with kind reserve"]),
        ("gpu.capacity={kind: capacity-block, id: cr-12345678}",
         ["capacity-block", "g6.12xlarge", "p5.48xlarge"]),
        (f"{_BLOCK}, starts: 2026-12-10}}", ["gpu.capacity.starts = 2026-12-10", "2026-12-10T11:30:00Z"]),
        (f"{_BLOCK}, starts: soon}}", ["gpu.capacity.starts = soon", "2026-12-10T11:30:00Z"]),
        (f"{_BLOCK}, starts: 5}}", ["gpu.capacity.starts = 5", "2026-12-10T11:30:00Z"]),
        (f"{_BLOCK}, starts: 2026-12-10T11:30:00}}", ["must name its time zone"]),
        ("ray.start_minutes=90,ray.run_hours=1", ["not shorter than run_hours 1", "use run_hours 2 or more"]),
        ("gpu.min_nodes=2", ["min_nodes 2 is not below nodes 2", "use 1 or less, or leave it out"]),
        ("gpu.min_nodes=1,gpu.nodes=1", ["min_nodes 1 is not below nodes 1; leave it out"]),
        ("gpu.min_nodes=1,training.transport.require=efa", ["with gpu.min_nodes 1", "gpu.min_nodes 2 or more"]),
        ("gpu.min_nodes=2,gpu.nodes=3,training.accumulation=1,training.micro_batch=4",
         ["training.accumulation 1 cannot be shared out to 2 to 3 nodes", "a multiple of 2"]),
        ("gpu.min_nodes=1,training.model.name=Qwen/Qwen2.5-7B,gpu.nodes=4",
         ["on 1 of 4 nodes (gpu.min_nodes, gpu.nodes)", "does not fit", "a larger gpu.min_nodes"]),
        ("ray.hf_token_secret=hf_token", ["not the name of a Secret", "docs/security.md"]),
        ("ray.namespace=kube-system", ["belongs to Kubernetes", "ray"]),
        ("name=Eagle_Ray", ["name = Eagle_Ray", "must match"]),
        ("training=5", ["training = 5", "group of settings"]),
        ("gpu.nodes.x=5", ["set=gpu.nodes.x", "not a group of settings"]),
        ("training.data.kind=text", ["kind text needs a path"]),
        ("training.data.path=/x", ["set kind to text"]),
        ("training.model.architecture={model_type: qwen2}", ["set weights to random"]),
        ("training.optimizer.learning_rate=.inf", ["learning_rate"]),
        ("training.hang.checkpoint_minutes=20",
         ["checkpoint_minutes 20 is not above twice checkpoint.retry_minutes 10", "retry_minutes below 10"]),
        ("nonsense", ["set=nonsense", "path=value"]),
        ("gpu.nodes=[", ["not YAML"]),
    ],
)
def test_a_wrong_value_is_refused_in_the_words_of_its_author(overrides, parts):
    message = refusal(overrides)
    assert "\n" not in message, message
    for part in parts:
        assert part in message


def test_a_token_in_the_place_of_its_secret_is_not_repeated():
    message = refusal("ray.hf_token_secret=hf_aBcDeFgHiJkLmN")
    assert message.startswith("set=ray.hf_token_secret=hf_…: ray.hf_token_secret = hf_…: ")
    assert "aBc" not in message


def test_every_wrong_value_is_named_at_once():
    lines = refusal("gpu.nodes=0,gpu.volume_gib=1").splitlines()
    assert [line.split(":")[0] for line in lines] == ["set=gpu.nodes=0", "set=gpu.volume_gib=1"]


def test_an_error_in_a_file_names_the_file(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("gpu:\n  nodes: 0\n")
    assert refusal(config=str(path)).startswith(f"{path}: gpu.nodes = 0: ")


@pytest.mark.parametrize(
    "text", ["gpu: [", "- a\n- b", "\tgpu: 1", "just words", "!!python/object/apply:os.system [ls]"]
)
def test_a_file_that_is_not_settings_is_refused(tmp_path, text):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    assert refusal(config=str(path)).startswith(str(path))


def test_an_empty_file_means_all_defaults(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("")
    assert load_settings(str(path)) == Settings()


@pytest.mark.parametrize("config", ["l5", "missing.yaml", "../l4", ""])
def test_a_config_that_does_not_exist_says_which_do(config):
    message = refusal(config=config)
    assert f"config={config}" in message


def test_overrides_take_lists_and_mappings_and_leave_the_rest_alone():
    s = load_settings("l4", "cluster.api_cidrs=[1.2.3.4/32, 5.6.7.8/32], training.steps=50,ray.run_hours=2")
    assert s.cluster.api_cidrs == ["1.2.3.4/32", "5.6.7.8/32"]
    assert (s.training.steps, s.ray.run_hours) == (50, 2)
    assert s.training.sequence_length == load_settings("l4").training.sequence_length


@pytest.mark.parametrize(("written", "tokens"), [("1000000", 10**6), ("1_000_000", 10**6), ("1.5e9", 15 * 10**8)])
def test_tokens_take_the_place_of_steps(written, tokens):
    training = load_settings("l4", f"training.tokens={written}").training
    assert (training.tokens, training.steps) == (tokens, None)


def test_the_last_override_wins():
    assert load_settings("l4", "gpu.nodes=3,gpu.nodes=4").gpu.nodes == 4


def test_a_reservation_keeps_its_placement_group():
    asked = {"kind": "reservation", "id": "cr-0123456789abcdef0", "placement_group": "pg"}
    s = load_settings("l4", f"gpu.capacity={json.dumps(asked)}")
    assert s.gpu.capacity.model_dump() == asked


@pytest.mark.parametrize("name", catalog.efa_gpu_types())
def test_a_block_may_be_used_of_the_types_that_have_them(name):
    asked = f"gpu.instance_type={name},gpu.capacity={{kind: capacity-block, id: cr-12345678}}"
    if name.startswith(("p4d", "p5", "p6")):
        assert load_settings("l4", asked).gpu.capacity.model_dump()["starts"] is None
    else:
        assert f"none are sold for {name}" in refusal(asked)


def test_the_start_of_a_block_is_a_moment_whatever_the_zone_that_it_is_written_in():
    utc = load_settings("l4", f"{_BLOCK}, starts: 2026-12-10T11:30:00Z}}").gpu.capacity
    assert utc == load_settings("l4", f"{_BLOCK}, starts: 2026-12-10T06:30:00-05:00}}").gpu.capacity


def test_the_same_training_has_the_same_name_wherever_it_runs():
    l4 = load_settings("l4").train_job("s3://a/runs")
    assert l4.name == load_settings("l4", "gpu.nodes=4").train_job("s3://b/runs").name
    assert l4.name != load_settings("l4", "training.seed=2").train_job("s3://a/runs").name


def test_a_train_job_survives_its_own_json():
    job = load_settings("h100").train_job("s3://b/runs")
    assert TrainJob.model_validate_json(job.model_dump_json()) == job


@pytest.mark.parametrize("name", catalog.efa_gpu_types())
def test_the_worker_pod_fits_every_type_that_may_be_chosen(name):
    s = load_settings("l4", f"gpu.instance_type={name}")
    node = catalog.instance_type(name)
    assert s.gpu.cpu * 1000 < node.alloc_cpu_m
    assert s.gpu.memory_gib * 1024 < node.alloc_mem_mib
    # More than half of the node, so that two never share one EFA device.
    assert s.gpu.cpu * 2000 > node.alloc_cpu_m


def leaves(value, path=()):
    if isinstance(value, dict):
        return [leaf for key, below in value.items() for leaf in leaves(below, (*path, key))]
    return [path]


LEAVES = leaves(json.loads(Settings().model_dump_json()))
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=12), st.lists(st.integers(), max_size=2)
)


@hypothesis_settings(deadline=None, max_examples=150)
@given(leaf=st.sampled_from(LEAVES), value=VALUES)
def test_any_value_in_any_place_is_taken_or_refused_but_never_a_crash(tmp_path_factory, leaf, value):
    nested = value
    for key in reversed(leaf):
        nested = {key: nested}
    path = tmp_path_factory.mktemp("fuzz") / "s.yaml"
    path.write_text(yaml.safe_dump(nested))
    refused = ""
    try:
        load_settings(str(path))
    except SettingsError as error:
        refused = str(error)
    assert not refused or leaf[0] in refused
