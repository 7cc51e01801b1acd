"""Changes that attach lists have the right sign, and none of them loses in its worst case."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from loader_passes import loader_pass

from fastloop.core.loading_settings import DEEP_PREFETCH
from fastloop.explain.attach import loop_model, loop_what_ifs
from fastloop.explain.attach.attribution import DECODE, HAND_OFF, WAIT_PARTS
from fastloop.explain.attach.loop_model import LoopModel, model_loop
from fastloop.explain.attach.loop_what_ifs import (
    FAST_STORE,
    STORE,
    LoopWhatIf,
    predict_changes,
)
from fastloop.explain.attach.loops import Loop, share_of_parts
from fastloop.explain.attach.recorded_processes import MadeBatch
from fastloop.explain.change import LEAST_GAIN
from fastloop.explain.model import WORST_CROWDED_POWER

BATCHES = 40
START_S = {"fork": 0.02, "spawn": 2.0}
"""Seconds that each worker takes to start and to end."""
COLLATE = 0.1
"""Share of making a batch that is collating it."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What a run has shown of a loop."""

    load_ms: float
    step_ms: float
    workers: int = 0
    hand_off_ms: float = 0.2
    passes: int = 2
    loaders: int = 1
    start_ms: float = 0.0
    """Time of the start and the end of each pass."""
    step_cores: float = 1.0
    missed: float = 1.0
    """The measured time of the waits and steps, divided by that of the model."""
    facts: dict[str, Any] = field(default_factory=dict)


def make_loop(found: Evidence) -> Loop:
    """A loop with this evidence: its waits are those of the model, but for `missed`."""
    load_ns, step_ns = int(found.load_ms * 1e6), int(found.step_ms * 1e6)
    pass_of = np.arange(BATCHES) * found.passes // BATCHES
    passes = tuple(
        loader_pass(
            number=number,
            loader=min(number, found.loaders - 1),
            step_cpu_ns=[int(step_ns * found.step_cores)] * int((pass_of == number).sum()),
        )
        for number in range(found.passes)
    )
    collate_ns = int(load_ns * (1 - COLLATE))
    made = tuple(
        MadeBatch(batch=number, start_ns=0, collate_ns=collate_ns, stop_ns=load_ns, cpu_ns=load_ns)
        for number in range(BATCHES)
    )
    waits = np.zeros((BATCHES, len(WAIT_PARTS)), np.int64)
    waits[:, HAND_OFF] = int(found.hand_off_ms * 1e6) if found.workers else 0
    facts = {"type": "DataLoader", "dataset": "Photos", "num_workers": found.workers}
    facts |= {"batch_size": 64, "prefetch_factor": 2, "persistent_workers": False}
    facts |= {"iterable": False, "most_workers": None, "start_method": "fork"}
    loop = Loop(
        facts=facts | found.facts,
        passes=passes,
        waits_ns=waits,
        steps_ns=np.full(BATCHES, step_ns, np.int64),
        pass_of=pass_of,
        starts_ns=np.full(found.passes, int(found.start_ms * 1e6), np.int64),
        transform_share=None,
        made=made,
    )
    model = model_loop(loop)
    assert model is not None
    loop_ns = found.missed * 1e9 * model.seconds(model.workers, model.prefetch)
    waits[:, DECODE] = max(0.0, loop_ns / BATCHES - step_ns - waits[0, HAND_OFF])
    return loop


@pytest.fixture(autouse=True)
def _known_machine(monkeypatch):
    """Eight cores, on which starting a worker takes a known time."""
    set_cores(monkeypatch, 8)
    monkeypatch.setattr(loop_model, "seconds_of_workers", lambda count, way: count * START_S[way])


def set_cores(monkeypatch, cores):
    for module in (loop_model, loop_what_ifs):
        monkeypatch.setattr(module, "usable_cores", lambda: cores)


def list_changes(found: Evidence) -> dict[str, LoopWhatIf]:
    loop = make_loop(found)
    predictions = predict_changes(loop, share_of_parts(loop))
    return {each.change.name: each for each in predictions.what_ifs}


@pytest.mark.parametrize(
    ("found", "gain"),
    [
        # Batches come every 6 ms, as handing one over takes five; without workers it takes 2 ms.
        (Evidence(load_ms=1, step_ms=1, workers=2, hand_off_ms=5), 1 - 2 / 6),
        # Two workers make a batch every 5 ms; the loop itself would take 11 ms.
        (Evidence(load_ms=10, step_ms=1, workers=2), None),
        # 40 batches take 80 ms without workers, and their two starts take a second.
        (Evidence(load_ms=1, step_ms=1, workers=2, start_ms=500), 1 - 80 / 1050),
        (Evidence(load_ms=10, step_ms=1), None),  # it has none
    ],
)
def test_no_workers_are_listed_with_the_sign_of_their_gain(found, gain):
    listed = list_changes(found).get("num_workers=0")
    assert (listed is None) == (gain is None)
    assert listed is None or listed.gain == pytest.approx(gain, abs=0.02)


SPAWNED = {"start_method": "spawn"}


@pytest.mark.parametrize(
    ("found", "gain"),
    [
        # Two starts of 4 s in a loop of 8.21 s. Forks would take 0.04 s each; the first batch of
        # each of the two passes still takes 0.01 s.
        (Evidence(load_ms=10, step_ms=1, workers=2, start_ms=4000, facts=SPAWNED), 1 - 0.31 / 8.21),
        # Starts so short that two forks may take longer.
        (Evidence(load_ms=10, step_ms=1, workers=2, start_ms=50, facts=SPAWNED), None),
        *(
            (Evidence(load_ms=10, step_ms=1, workers=2, start_ms=4000, facts=SPAWNED | fact), None)
            for fact in ({"uses_cuda": True}, {"has_unsafe_forks": True})
        ),
        (Evidence(load_ms=10, step_ms=1, workers=2, start_ms=4000), None),
        (Evidence(load_ms=10, step_ms=1, facts=SPAWNED), None),
    ],
)
def test_forks_are_listed_only_if_they_are_safe_and_save_time(found, gain):
    listed = list_changes(found).get("multiprocessing_context='fork'")
    assert (listed is None) == (gain is None)
    assert listed is None or listed.gain == pytest.approx(gain, abs=0.02)


def draw_evidence(drawn: np.random.Generator) -> Evidence:
    passes = int(drawn.integers(1, 5))
    return Evidence(
        load_ms=10 ** drawn.uniform(-1, 2),
        step_ms=10 ** drawn.uniform(-1, 2),
        workers=int(drawn.choice([0, 1, 2, 4])),
        hand_off_ms=10 ** drawn.uniform(-1, 1),
        passes=passes,
        loaders=passes if drawn.random() < 0.5 else 1,
        start_ms=10 ** drawn.uniform(-1, 3.5),
        step_cores=drawn.uniform(0.2, 4),
        missed=drawn.uniform(0.85, 1.2),
        facts={
            "start_method": str(drawn.choice(["fork", "spawn"])),
            "is_native": bool(drawn.random() < 0.2),
            "persistent_workers": bool(drawn.random() < 0.2),
        },
    )


def find_least_gain(model: LoopModel, listed: LoopWhatIf) -> float:
    """The gain if whatever the run did not show costs as much as docs/attaching.md allows for."""
    settings = listed.change.settings
    passes, loaders = len(model.loop.passes), model.loop.loaders
    is_kept = settings.get("persistent_workers") or model.loop.facts["persistent_workers"]
    starts = 2 * (loaders if is_kept else passes)
    if workers := settings.get("num_workers"):
        starts_s = model.starts_with(workers, starts)
        return model.gain(workers, model.prefetch, starts_s, crowded_power=WORST_CROWDED_POWER)
    if "multiprocessing_context" in settings:
        return model.gain(model.workers, model.prefetch, model.starts_of_forks(starts))
    # A store that saves half as much: collating is left of the batches in any case.
    if listed.change.name == STORE:
        return model.gain(model.workers, model.prefetch, model.starts_s, (1 + COLLATE) / 2)
    if listed.change.name == FAST_STORE:
        return model.gain(1, DEEP_PREFETCH, 0.0, 0.5)
    assert listed.gain is not None
    return listed.gain


def test_no_listed_change_loses_in_its_worst_case(monkeypatch):
    """Of 50 random loops: nothing is called "at most" that may be a loss."""
    drawn, seen = np.random.default_rng(0), Counter[str]()
    for _ in range(50):
        set_cores(monkeypatch, int(drawn.choice([1, 2, 4, 8])))
        loop = make_loop(found := draw_evidence(drawn))
        predictions = predict_changes(loop, share_of_parts(loop))
        model = model_loop(loop)
        assert model is not None
        assert predictions.model_ratio is not None
        for each in predictions.what_ifs:
            name = each.change.name
            assert each.is_bound == (name in (STORE, FAST_STORE))
            if each.gain is None:
                continue
            least = find_least_gain(model, each)
            assert LEAST_GAIN - 1e-9 <= min(least, each.gain) <= each.gain < 1, (name, found)
            seen[name.partition("=")[0]] += 1
    assert seen.keys() >= {"num_workers", "multiprocessing_context", STORE, FAST_STORE}
