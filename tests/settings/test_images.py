"""Images by tag and by digest, and the Ray that is in them."""

import pytest
import yaml

from settings import SettingsError, load_settings

DIGEST = f"sha256:{'0123456789abcdef' * 4}"


@pytest.mark.parametrize("image", [
    "rayproject/ray:2.58.0-py311-gpu",
    "ray:1",
    "registry.local:5000/me/ray:1",
    f"registry.local:5000/me/ray@{DIGEST}",
    f"public.ecr.aws/deep-learning-containers/ray:train-ml-cuda-v1.1@{DIGEST}",
    f"123456789012.dkr.ecr.us-east-2.amazonaws.com/ray@{DIGEST}",
])
def test_names_of_images(image):
    assert load_settings("l4", f'ray.image="{image}"').ray.image == image


@pytest.mark.parametrize(("image", "parts"), [
    ("rayproject/ray", ["has no tag", "rayproject/ray:TAG"]),
    ("registry.local:5000/me/ray", ["has no tag"]),
    ("Rayproject/Ray:1", ["not the name of an image", "public.ecr.aws/team/ray:1.2"]),
    ("https://public.ecr.aws/ray:1", ["not the name of an image"]),
    ("ray:1 && curl", ["not the name of an image"]),
    ("ray:1\n", ["not the name of an image"]),
    ("r\u00e4y:1", ["not the name of an image"]),
    ("../ray:1", ["not the name of an image"]),
    (":1", ["not the name of an image"]),
    ("", ["not the name of an image"]),
    ("a" * 600 + ":1", ["not the name of an image"]),
    ("ray@sha256:abc", ["sha256:abc is no digest", "64 hexadecimal digits"]),
    ("ray@", ["nothing is no digest"]),
    (f"ray@{DIGEST.upper()}", ["is no digest"]),
    (f"ray@{DIGEST}@{DIGEST}", ["is no digest"]),
])
def test_what_is_no_image(tmp_path, image, parts):
    (file := tmp_path / "c.yaml").write_text(yaml.safe_dump({"ray": {"image": image}}))
    with pytest.raises(SettingsError) as error:
        load_settings(str(file))
    assert "ray.image" in str(error.value)
    assert all(part in str(error.value) for part in parts), str(error.value)


def test_a_digest_that_is_none_is_named():
    with pytest.raises(SettingsError, match=r"digests\.efa_device_plugin = latest: latest is no digest"):
        load_settings("l4", "digests.efa_device_plugin=latest")


@pytest.mark.parametrize(("version", "part"), [
    ("2.51.1", "knows no tokens"), ("1.13.0", "knows no tokens"), ("two", "looks like 2.58.0"),
    ("2.58", "looks like 2.58.0"), ("2.58.0\n", "looks like 2.58.0")])
def test_a_ray_without_tokens_is_refused(tmp_path, version, part):
    (file := tmp_path / "c.yaml").write_text(yaml.safe_dump({"ray": {"version": version}}))
    with pytest.raises(SettingsError, match=r"ray\.version.*" + part):
        load_settings(str(file))
