"""The global generators of torch, numpy and random: what is noticed, and what is set back."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from fastloop.fastloader.global_generators import GENERATORS

DRAWS = {
    "torch": [lambda: torch.rand(1), lambda: torch.randn(20), lambda: torch.randperm(3)],
    "numpy": [np.random.rand, lambda: np.random.permutation(9), lambda: np.random.bytes(4)],
    "random": [random.random, lambda: random.gauss(0, 1), lambda: random.choice("abc")],
}


def draw_some(name: str) -> Any:
    numbers = {
        "torch": lambda: torch.rand(3).tolist(),
        "numpy": lambda: np.random.rand(3).tolist(),
        "random": lambda: [random.random(), random.gauss(0, 1), random.gauss(0, 1)],
    }
    return numbers[name]()


@pytest.mark.parametrize("name", GENERATORS)
def test_every_draw_is_noticed_and_taken_back(name):
    generator = GENERATORS[name]
    before = generator.save()
    try:
        # More draws than a state has words, so that it is renewed on the way.
        for turn in range(700):
            watched = generator.watch()
            assert generator.watch() == watched
            DRAWS[name][turn % 3]()
            assert generator.watch() != watched
        watched = generator.watch()
        expected = draw_some(name)
        generator.rewind(watched)
        assert draw_some(name) == expected
        assert generator.watch() != watched
    finally:
        generator.restore(before)


@pytest.mark.parametrize(
    ("name", "draw"), [("random", lambda: random.gauss(0, 1)), ("numpy", np.random.randn)]
)
@pytest.mark.parametrize("num_before", [0, 1])
def test_both_numbers_of_a_pair_of_normal_ones_are_noticed(name, draw, num_before):
    """The second one is kept for the next call, which draws nothing."""
    generator = GENERATORS[name]
    before = generator.save()
    try:
        generator.seed(5)
        for _ in range(num_before):
            draw()
        watched = generator.watch()
        expected = [draw() for _ in range(3)]
        generator.rewind(watched)
        assert generator.watch() == watched
        for number in expected:
            last = generator.watch()
            assert draw() == number
            assert generator.watch() != last
    finally:
        generator.restore(before)


@pytest.mark.parametrize("name", GENERATORS)
def test_seed_and_restore_are_those_of_the_library(name):
    generator = GENERATORS[name]
    before = generator.save()
    seeds = {"torch": torch.manual_seed, "numpy": np.random.seed, "random": random.seed}
    generator.seed(7)
    drawn = draw_some(name)
    seeds[name](7)
    assert draw_some(name) == drawn
    generator.restore(before)
    first = draw_some(name)
    generator.restore(before)
    assert draw_some(name) == first
    generator.restore(before)


def test_another_kind_of_generator_of_numpy_is_watched():
    usual = np.random.get_bit_generator()
    generator = GENERATORS["numpy"]
    np.random.set_bit_generator(np.random.PCG64(3))
    try:
        watched = generator.watch()
        expected = np.random.rand()
        assert generator.watch() != watched
        generator.rewind(watched)
        assert np.random.rand() == expected
    finally:
        np.random.set_bit_generator(usual)
