"""Warm-up from zero, then cosine to the final fraction, reached at the last step."""

import math

import pytest

from training.config import OptimizerConfig
from training.step import learning_rate

CONFIG = OptimizerConfig(learning_rate=1e-3, warmup_steps=10, final_fraction=0.1)


def rates(config, steps):
    return [learning_rate(config, step, steps) for step in range(1, steps + 1)]


def test_warm_up_is_linear_and_the_peak_is_its_last_step():
    assert rates(CONFIG, 100)[:10] == pytest.approx([1e-4 * i for i in range(1, 11)])


def test_cosine_falls_to_the_final_fraction():
    after = rates(CONFIG, 100)[9:]
    assert after == sorted(after, reverse=True)
    assert after[-1] == pytest.approx(1e-4)
    assert learning_rate(CONFIG, 55, 100) == pytest.approx(1e-3 * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi / 2))))


def test_a_run_shorter_than_its_warm_up_has_no_peak():
    assert rates(CONFIG, 5) == pytest.approx([1e-4 * i for i in range(1, 6)])


def test_without_warm_up_the_first_step_is_close_to_the_peak():
    config = OptimizerConfig(learning_rate=1e-3, warmup_steps=0, final_fraction=1.0)
    assert rates(config, 3) == pytest.approx([1e-3] * 3)
