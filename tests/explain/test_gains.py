"""Predicted gains with intervals, of batches and of models whose truth is known."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import pytest

from fastloop.core.parts import Part
from fastloop.explain import predicted_gain
from fastloop.explain.batch_passes import BatchTimes
from fastloop.explain.ladder import build_ladder
from fastloop.explain.predict import HandOff, Measured
from fastloop.explain.predicted_gain import Prediction, estimate_gain, predict_gain, resample
from fastloop.explain.rung_passes import EpochTimes
from fastloop.trial.job import Job

BATCHES = 100


def pass_of(seconds: float) -> EpochTimes:
    return EpochTimes(seconds=seconds, batches=BATCHES, first_wait_s=0, later_wait_s=0, end_s=0)


def ladder_of(seconds: float, noise: float = 0.001):
    factors = np.exp(noise * np.random.default_rng(0).standard_normal((8, 3)))
    rounds = [
        {
            Part.STEP: pass_of(0.5 * step),
            Part.COPY: pass_of(0.5 * copy),
            Part.READ: pass_of(seconds * whole),
        }
        for step, copy, whole in factors
    ]
    return build_ladder(rounds, BATCHES, {})


def measured(spread: float = 0.0) -> Measured:
    load_s = (0.005 * (1 + spread * np.random.default_rng(0).standard_normal(50))).tolist()
    steady = [0.005] * 50
    times = BatchTimes(load_s=load_s, load_cpu_s=steady, step_s=steady, step_cpu_s=steady)
    return Measured(batches=BATCHES, own_threads=times, one_thread=times, hand_off={}, kept=1.0)


def loading_s(times: Measured) -> float:
    return BATCHES * float(np.mean(times.own_threads.load_s))


def whole_s(times: Measured) -> float:
    return loading_s(times) + BATCHES * float(np.mean(times.own_threads.step_s))


def predict(epoch_s: float, keeps_miss: bool = False, is_other: bool = False, **settings):
    prediction = Prediction(
        present=whole_s, changed=loading_s, keeps_miss=keeps_miss, is_other_loader=is_other
    )
    return estimate_gain(prediction, measured(settings.get("spread", 0.0)), ladder_of(epoch_s))


def width(estimate) -> float:
    return estimate.high - estimate.low


def test_a_model_that_is_right_predicts_the_difference():
    gain = predict(1.0)
    assert gain.value == pytest.approx(0.5, abs=0.002)
    assert gain.low < 0.5 < gain.high


@pytest.mark.parametrize("epoch_s", [0.8, 1.25])
def test_a_model_that_misses_the_job_is_less_sure(epoch_s):
    """Loading alone takes 0.5 s, or its share of the epoch, whichever the model's miss is of."""
    gain = predict(epoch_s)
    assert width(gain) > 1.5 * width(predict(1.0))
    assert gain.low < min(0.5, 1 - 0.5 / epoch_s)
    assert gain.high > max(0.5, 1 - 0.5 / epoch_s)


def test_what_a_change_leaves_alone_cancels():
    assert predict(1.25, keeps_miss=True).value == pytest.approx(0.5, abs=0.002)
    assert predict(1.25).value == pytest.approx(1 - 0.5 / 1.25**0.5 / 1.0, abs=0.06)


def test_other_loaders_and_uneven_batches_are_less_sure():
    assert width(predict(1.0, is_other=True)) > width(predict(1.0))
    assert width(predict(1.0, spread=0.8)) > width(predict(1.0))


def test_batches_are_drawn_with_their_own_steps():
    load_s = [float(number) for number in range(50)]
    times = replace(measured().own_threads, load_s=load_s, step_s=[2 * each for each in load_s])
    rounds = [HandOff(pass_of(2.0), pass_of(1.0)), HandOff(pass_of(3.0), pass_of(1.5))]
    once = replace(measured(), own_threads=times, hand_off={2: rounds})
    again = resample(once, 0.1, np.random.default_rng(0))
    assert again.own_threads.step_s == [2 * each for each in again.own_threads.load_s]
    assert set(again.own_threads.load_s) < set(load_s)
    assert len(again.hand_off[2]) == 2
    for from_workers, in_loop in again.hand_off[2]:
        assert from_workers.seconds / in_loop.seconds != 2.0
        assert from_workers.seconds / in_loop.seconds == pytest.approx(2.0, rel=0.5)


def test_two_passes_that_differ_are_a_weak_basis_or_none():
    prediction = Prediction(
        present=whole_s, changed=loading_s, keeps_miss=False, is_other_loader=False
    )

    def gain(difference: float, keeps_miss: bool = False):
        times = replace(measured().one_thread, difference=difference)
        of = replace(prediction, keeps_miss=keeps_miss)
        return estimate_gain(of, replace(measured(), one_thread=times), ladder_of(1.0))

    assert width(gain(0.25)) > 1.5 * width(gain(0.0))
    assert gain(0.5) is None
    assert gain(0.5, keeps_miss=True) is not None


def test_noisy_rounds_make_predictions_less_sure():
    prediction = Prediction(
        present=whole_s, changed=loading_s, keeps_miss=False, is_other_loader=False
    )
    noisy = estimate_gain(prediction, measured(), ladder_of(1.0, noise=0.2))
    assert width(noisy) > 1.5 * width(predict(1.0))


@dataclass(frozen=True)
class Cached:
    """A job, as far as the state of its files tells a gain."""

    cache: str


@pytest.mark.parametrize(("cache", "gain"), [("cold", 0.2), ("as_is", 0.2), ("warm", None)])
def test_only_a_job_without_warm_files_gains_by_them(monkeypatch, cache, gain):
    monkeypatch.setattr(predicted_gain, "find_effect", lambda *_: None)
    seconds = {Part.STEP: 0.4, Part.COPY: 0.4, Part.DECODE: 0.8, Part.READ: 1.0}
    times = {rung: pass_of(each) for rung, each in seconds.items()}
    ladder = build_ladder([times] * 3, BATCHES, {})
    present, candidate = (cast("Job", Cached(each)) for each in (cache, "warm"))
    predicted = predict_gain(candidate, present, measured(), ladder)
    assert (predicted and predicted.value) == (gain and pytest.approx(gain, abs=0.01))
