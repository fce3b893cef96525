"""Values of every kind in every place of the schema: either a job or one clear error, never a crash."""

import typing

import annotated_types
import pytest
import yaml
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from settings import Settings, SettingsError, load_settings
from settings.loading import models_in
from training.config import TrainJob

_HUGE = 10**30
_WORDS = [
    "", " ", "auto", "none", "null", "true", "../..", "/etc/passwd", "s3://b/x", "a" * 3000, "\x00", "\x1b[2J\x07",
    "\u202e", "\ud800", "\U0001f701", "\u0661\u0662", "1e9", "1e400", "nan", "inf", "-1", "0x10", "$(reboot)",
    "`id`", "{{x}}", "%s", "us-east-2a", "g6.12xlarge", "p5.48xlarge", "m7i.xlarge", "10.0.0.0/16", "0.0.0.0/0",
    "::/0", "cr-0123456789abcdef0", "2026-12-10T11:30:00Z"]
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-_HUGE, _HUGE) | st.floats() | st.text(max_size=20)
    | st.sampled_from(_WORDS) | st.dates(),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=8), below, max_size=3),
    max_leaves=5)


def places(model, path=()):
    """Every setting and every group, each with its field, by the path that leads there."""
    for name, field in model.model_fields.items():
        yield (*path, name), field
        for below in models_in(field.annotation):
            yield from places(below, (*path, name))


PLACES = list(places(Settings))


def values(field):
    """Values of the field's own kind, at its bounds and just beyond, or anything."""
    kind = typing.get_args(field.annotation) if typing.get_origin(field.annotation) is not None else ()
    chosen = [arg for arg in kind if isinstance(arg, str | bool)]
    bounds = [bound for one in field.metadata for bound in (
        getattr(one, "ge", None), getattr(one, "gt", None), getattr(one, "le", None), getattr(one, "lt", None))
        if bound is not None and isinstance(one, annotated_types.Ge | annotated_types.Gt | annotated_types.Le
                                            | annotated_types.Lt)]
    near = [number + step for number in bounds for step in (-1, 0, 1)]
    default = [] if field.is_required() else [field.get_default()]
    own = [value for value in [*chosen, *near, *default] if isinstance(value, str | int | float | list | None)]
    return (st.sampled_from(own) | ANYTHING) if own else ANYTHING


@st.composite
def files(draw):
    """A settings file with one to four settings, somewhere."""
    written = {}
    for path, field in draw(st.lists(st.sampled_from(PLACES), min_size=1, max_size=4)):
        where = written
        for key in path[:-1]:
            below = where.setdefault(key, {})
            where = where.setdefault(key, {}) if isinstance(below, dict) else {}
        where[path[-1]] = draw(values(field))
    return written


def load(folder, text, overrides=None):
    """The settings, or None after a look at the refusal."""
    (file := folder / "s.yaml").write_text(text, encoding="utf-8")
    try:
        return load_settings(str(file), overrides)
    except SettingsError as error:
        message = str(error)
        assert message
        assert all(line.isprintable() and 5 < len(line) < 3000 for line in message.splitlines())
        assert "Traceback" not in message
        assert "pydantic" not in message
        return None


def is_a_job(settings):
    """What every pod reads is what the settings say, also after a round through its file."""
    job = settings.train_job("s3://bucket/runs")
    assert TrainJob.model_validate_json(job.model_dump_json()) == job
    assert job.placement.world_size == settings.gpu.nodes * settings.gpu.instance.gpus


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


@hypothesis_settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(written=files())
def test_a_file_is_a_job_or_one_clear_error(folder, written):
    if (settings := load(folder, yaml.safe_dump(written))) is not None:
        is_a_job(settings)


@hypothesis_settings(deadline=None, max_examples=300)
@given(place=st.sampled_from(PLACES), value=st.text(max_size=30) | st.sampled_from(_WORDS),
       rest=st.text(alphabet="=,.[]{}\"'# \n:&*!ab1", max_size=20))
def test_overrides_are_a_job_or_one_clear_error(folder, place, value, rest):
    if (settings := load(folder, "", f"{'.'.join(place[0])}={value}{rest}")) is not None:
        is_a_job(settings)


@hypothesis_settings(deadline=None, max_examples=200)
@given(text=st.text(max_size=60) | st.text(alphabet="ab:-[]{}&*!|>?,'\"%@ \n\t01.", max_size=60))
def test_any_text_is_settings_or_one_clear_error(folder, text):
    try:
        text.encode()
    except UnicodeEncodeError:
        return
    load(folder, text)


DEEP = "training: {model: {architecture: " + "[" * 5000 + "]" * 5000 + "}}"
LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(b)}: &{chr(b)} [{','.join([f'*{chr(b - 1)}'] * 9)}]\n" for b in range(ord("b"), ord("m")))


@pytest.mark.parametrize(("text", "part"), [
    ("name: !!python/object/apply:os.system ['touch owned']", "could not determine a constructor"),
    ("name: !!python/name:os.system", "could not determine a constructor"),
    (LAUGHS, "aliases unfold"),
    ("training: {model: &m {architecture: *m}}", "contains itself"),
    (DEEP, "nested deeper than 40"),
    ("{" * 5000, "nested deeper than 40"),
    (f"gpu: {{nodes: {'9' * 5000}}}", "cannot be read"),
    ("gpu: {capacity: {starts: 2026-13-45}}", "cannot be read"),
    ("name: !!binary aGk=", "type bytes"),
    ("network: {spare_zones: !!set {a}}", "type set"),
    ("1: 2", "the name 1 is no text"),
    ('name: "\\uD800"', "half a character"),
    ("a" * 2_000_000, "longer than"),
    ("training: {model: {weights: random, architecture: {model_type: qwen2, x: .inf}}}", "what JSON has"),
    ("training: {model: {weights: random, architecture: {model_type: qwen2, x: 2026-01-01}}}", "what JSON has"),
])
def test_a_hostile_file_is_refused_and_runs_nothing(tmp_path, monkeypatch, text, part):
    monkeypatch.chdir(tmp_path)
    (file := tmp_path / "s.yaml").write_text(text)
    with pytest.raises(SettingsError) as error:
        load_settings(str(file))
    assert part in str(error.value)
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("config", ["\x00", "a\x00.yaml", "x" * 5000, "../../etc/passwd", "x" * 5000 + ".yaml"])
def test_a_hostile_name_of_a_config_is_refused(config):
    with pytest.raises(SettingsError, match="config="):
        load_settings(config)


def test_an_override_that_goes_deep_is_refused():
    with pytest.raises(SettingsError, match="no setting lies that deep"):
        load_settings("l4", "training.model.architecture" + ".a" * 3000 + "=1")


@pytest.mark.parametrize("examples", [3, pytest.param(25, marks=pytest.mark.long)])
def test_what_the_settings_take_synthesizes(tmp_path_factory, examples):
    """A whole synth of settings that were taken: no construct refuses what the settings let pass."""
    from app import wrong_manifests
    from tests.conftest import _synthesize

    folder = tmp_path_factory.mktemp("synth")

    @hypothesis_settings(deadline=None, max_examples=examples, database=None,
                         suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow,
                                                HealthCheck.data_too_large])
    @given(written=files().filter(lambda written: load(folder, yaml.safe_dump(written)) is not None))
    def synthesize(written):
        (file := folder / "s.yaml").write_text(yaml.safe_dump(written))
        app = _synthesize(tmp_path_factory.mktemp("cdk.out"), str(file), "")
        assert wrong_manifests(app.outdir, app.manifests) is None

    synthesize()
