"""Losses with a change beside those without it: the values on which a script calls backward()."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from fastloop.core.stats import Estimate
from fastloop.explain.attach import backward_probe
from fastloop.explain.attach.backward_probe import LossRecorder
from fastloop.explain.attach.loss_comparison import OPPOSITE, LossComparison, compare_losses
from fastloop.explain.attach.script_runner import AS_IS, ScriptRunner
from fastloop.explain.attach.tried_changes import TriedChange, TriedLoop
from fastloop.explain.attach.tried_text import format_tried
from fastloop.explain.change import Change

WORKER = Change(settings={"num_workers": 1})
FAST = Change(is_fastloader=True)
TRAIN = """
import torch
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return 32
    def __getitem__(self, index):
        {draw}
        return torch.full((4,), index / 32)

{seed}
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(Numbers(), 4, shuffle={shuffle})
for epoch in range(2):
    for batch in loader:
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        {step}
        optimizer.step()
    model(torch.ones(1, 4)).sum().backward()
"""
MADE, LOOP = "loader = DataLoader(", "    for batch in loader:"


def run_thrice(folder, change, draw="pass", seed="torch.manual_seed(0)", step=None, shuffle=True):
    """The script without the change, the same again, and with it."""
    path = folder / "train.py"
    step = "loss.backward()" if step is None else step
    path.write_text(TRAIN.format(draw=draw, seed=seed, step=step, shuffle=shuffle))
    lines = path.read_text().splitlines()
    (made,) = [number for number, line in enumerate(lines, 1) if line.startswith(MADE)]
    facts = {"place": f"train.py:{lines.index(LOOP) + 1}", "made_at": f"{path}:{made}"}
    found = SimpleNamespace(facts=facts, ranks=None, batches=16, passes=2, seconds=1.0)
    # The first run goes on into the second pass, whose losses count for nothing.
    runner = ScriptRunner([str(path)], cast("Any", found), 12, folder)
    again, changed = (runner.rerun_hashed(each, 120.0) for each in (AS_IS, change))
    return runner.run_hashed(AS_IS, 120.0), again, changed


def compare(runs):
    return compare_losses(*(each.losses for each in runs))


@pytest.mark.heavy
@pytest.mark.parametrize("change", [WORKER, FAST], ids=["worker", "fastloader"])
def test_change_of_a_seeded_script_keeps_the_losses(tmp_path, change):
    runs = run_thrice(tmp_path, change)
    assert compare(runs) == LossComparison(same=True, count=8, difference=0.0)
    values = {value for _, value in runs[0].losses}
    assert len(values) == 8, "the model learns, and dropout draws"
    assert [batch for batch, _ in runs[0].losses] == [*range(1, 9)]


@pytest.mark.heavy
def test_losses_differ_if_samples_draw_what_dropout_gets_without_the_change(tmp_path):
    """The samples are the same, as they don't depend on what they draw."""
    first, again, changed = run_thrice(
        tmp_path, WORKER, draw="index < 8 or torch.rand(1)", shuffle=False
    )
    assert first.digests == again.digests == changed.digests
    losses = compare((first, again, changed))
    assert (losses.same, losses.count, losses.from_batch) == (False, 8, 3)
    assert losses.difference is not None
    assert losses.difference > 0.001


@pytest.mark.heavy
def test_script_without_a_fixed_seed_is_not_accused(tmp_path):
    losses = compare(run_thrice(tmp_path, WORKER, seed=""))
    assert losses == LossComparison(not_compared="the script has other losses in each run")


@pytest.mark.heavy
def test_script_that_does_not_train_has_no_losses(tmp_path):
    """The single loss after each pass belongs to no step of the loop."""
    losses = compare(run_thrice(tmp_path, WORKER, step="pass"))
    assert losses.same is None
    assert "not seen to call backward()" in losses.not_compared


NAN, INFINITE = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("without", "changed", "difference", "from_batch"),
    [
        ([1.0, NAN], [1.0, NAN], 0.0, None),
        ([INFINITE], [INFINITE], 0.0, None),
        ([0.0, 2.0], [-0.0, 2.0], 0.0, None),
        ([1.0, 2.0, 2.0], [1.0, 1.0, 1.5], 0.5, 2),
        ([1.0], [-1.0], OPPOSITE, 1),
        ([1e308], [-1e308], OPPOSITE, 1),
        ([1.0], [NAN], OPPOSITE, 1),
        ([INFINITE], [1.0], OPPOSITE, 1),
        ([0.0], [1e-300], 1.0, 1),
    ],
)
def test_difference_is_a_share_of_the_greater_value(without, changed, difference, from_batch):
    losses, others = ([*enumerate(values, 1)] for values in (without, changed))
    found = compare_losses(losses, losses, others)
    assert found == LossComparison(
        same=difference == 0.0, count=len(losses), difference=difference, from_batch=from_batch
    )


def test_difference_in_the_last_digit_is_one():
    last = 1.0 + 2.0**-52
    found = compare_losses([(1, 1.0)], [(1, 1.0)], [(1, last)])
    assert (found.same, found.from_batch) == (False, 1)


def test_other_number_of_calls_is_no_comparison():
    one, two = [(1, 1.0)], [(1, 1.0), (2, 0.5)]
    assert "1 times in one run, 2 in another" in compare_losses(one, two, two).not_compared
    assert "2 times with it, 1 times without" in compare_losses(one, one, two).not_compared


def test_calls_of_backward_are_recorded_while_the_recorder_is_open():
    recorder, original = LossRecorder(lambda: 3), torch.autograd.backward
    weight = torch.ones(2, requires_grad=True)
    weight.sum().backward()
    recorder.open()
    try:
        weight.sum().backward()
        torch.autograd.backward([2 * weight.sum(), weight[:1]])
        torch.autograd.backward(tensors=3 * weight.sum())
        weight.backward(torch.ones(2))
        with pytest.raises(RuntimeError, match="scalar outputs"):
            weight.backward()
        loss = 4 * weight.sum()
        loss.backward()
        loss.detach().zero_()
    finally:
        recorder.close()
    (5 * weight.sum()).backward()
    assert torch.autograd.backward is original
    assert recorder.read() == [(3, value) for value in (2.0, 4.0, 1.0, 6.0, 8.0)]
    assert weight.grad is not None
    assert weight.grad.tolist() == [1 + 1 + 3 + 3 + 1 + 4 + 5, 1 + 1 + 2 + 3 + 1 + 4 + 5]


def test_number_of_recorded_losses_is_bounded(monkeypatch):
    monkeypatch.setattr(backward_probe, "MOST_LOSSES", 2)
    recorder, weight = LossRecorder(lambda: 1), torch.ones(1, requires_grad=True)
    recorder.open()
    for _ in range(3):
        weight.sum().backward()
    recorder.close()
    assert len(recorder.read()) == 2


def test_function_that_the_script_puts_around_backward_stays(monkeypatch):
    monkeypatch.setattr(torch.autograd, "backward", torch.autograd.backward)
    recorder, weight = LossRecorder(lambda: 1), torch.ones(1, requires_grad=True)
    recorder.open()
    inner = torch.autograd.backward

    def of_script(*args, **named):
        inner(*args, **named)

    torch.autograd.backward = of_script
    weight.sum().backward()
    recorder.close()
    weight.sum().backward()
    assert torch.autograd.backward is of_script
    assert len(recorder.read()) == 1


def shown(**more):
    """The answer for a recommended change, in one line."""
    gain = Estimate(value=0.5, low=0.4, high=0.6, is_interval=True)
    tried = TriedLoop(
        place="train.py:9",
        made_at="/nowhere/train.py:1",
        batches=40,
        seconds=10.0,
        changes=(TriedChange(change="num_workers=1", predicted=None, gain=gain, rounds=3),),
        minutes=3.0,
        least_minutes=1.0,
        is_out_of_time=False,
        best="num_workers=1",
    )
    return " ".join(format_tried(replace(tried, **more), None).split())


@pytest.mark.parametrize(
    ("losses", "told"),
    [
        (
            LossComparison(same=True, count=80, difference=0.0),
            "With the change the first pass has the same losses to the last digit "
            "(calls of backward(): 80).",
        ),
        (
            LossComparison(same=False, count=80, difference=1.2e-7, from_batch=4),
            "the losses of the first pass differ from batch 4 on, by up to 0.000012 % "
            "(calls of backward(): 80).",
        ),
        (
            LossComparison(not_compared="the script has other losses in each run"),
            "whether the change keeps the losses: the script has other losses in each run.",
        ),
    ],
)
def test_answer_tells_losses_beside_samples(losses, told):
    text = shown(same_samples=True, losses=losses)
    assert "With the change the first pass has the same samples as without it." in text
    assert text.endswith(told)
    assert "losses" not in shown(best=None, losses=LossComparison())


def test_reason_for_which_nothing_was_compared_is_told_once():
    reason = "the time was used up"
    text = shown(not_compared=reason, losses=LossComparison(not_compared=reason))
    assert text.endswith(f"the change keeps the samples and the losses: {reason}.")
    assert text.count(reason) == 1
