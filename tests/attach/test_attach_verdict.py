"""The first sentence of attach's verdict is the answer, or that there is none yet."""

from __future__ import annotations

import json
import re
import signal
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from fastloop.core.explanation import Verdict
from fastloop.core.parts import Part
from fastloop.core.stats import Estimate
from fastloop.core.text import LINE_WIDTH
from fastloop.explain.attach import findings_text
from fastloop.explain.attach.findings import (
    LoopFindings,
    ScriptFindings,
    to_json,
)
from fastloop.explain.attach.findings_text import describe_nothing, format_findings, what_if_rows
from fastloop.explain.attach.loop_usage import LoopUsage
from fastloop.explain.attach.loop_verdict import judge_loop
from fastloop.explain.attach.loop_what_ifs import LoopPredictions, LoopWhatIf
from fastloop.explain.attach.loops import Loop, share_of_parts, wait_share
from fastloop.explain.attach.step_lines import StepLine, StepLines
from fastloop.explain.change import Change


def a_loop(seconds: float, workers: int = 0) -> Loop:
    waits = np.full((100, 1), int(seconds * 1e9) // 200, np.int64)
    return Loop(
        facts={"type": "DataLoader", "place": "train.py:9", "num_workers": workers},
        passes=(),
        waits_ns=waits,
        steps_ns=waits[:, 0],
        pass_of=np.zeros(100, np.int64),
        starts_ns=np.zeros(0, np.int64),
        transform_share=None,
        made=(),
    )


@pytest.mark.parametrize(
    ("known", "told"),
    [
        ({"made_at": "train.py:3", "num_samples": 5000}, " (of line 3, 5,000 samples)"),
        ({"made_at": "", "num_samples": 5000}, " (5,000 samples)"),
        ({"made_at": "train.py:3", "num_samples": None}, " (of line 3)"),
        ({}, ""),
    ],
)
def test_twin_loops_are_told_apart_by_all_that_is_known_of_them(known, told):
    loop = a_loop(1.0)
    twin = replace(loop, facts=loop.facts | known, has_twin=True)
    assert twin.name == f"{loop.name}{told}"


def share(value: float, low: float, high: float) -> Estimate:
    return Estimate(value=value, low=low, high=high, is_interval=True)


@pytest.mark.parametrize(
    ("wait", "word", "first"),
    [
        ((0.67, 0.6, 0.7), "decode", "waits for data 67 % [60 %, 70 %] of the time; "),
        ((0.5, 0.04, 0.7), "decode", "waits for data about 50 % of the time; "),
        ((0.3, -0.1, 0.7), "unattributed", "30 % is likely, and anything up to 70 % possible"),
        ((0.04, -0.1, 0.4), "unattributed", "4.0 % is likely, and anything up to 40 % possible"),
        ((0.02, 0.01, 0.03), "step", "a perfect loader would save at most 3.0 % of 50 ms"),
    ],
)
def test_first_sentence_is_the_answer(wait, word, first):
    step = share(1 - wait[0], 1 - wait[2], 1 - wait[1])
    verdict = judge_loop(a_loop(0.05), {Part.STEP: step, Part.DECODE: share(*wait)})
    assert verdict.word == word
    assert first in verdict.sentences[0]
    assert verdict.sentences[0].startswith("No answer yet: ") is (word == "unattributed")
    assert len(verdict.sentences) == (2 if word == "decode" else 1)


@pytest.mark.parametrize(("step", "decode", "of_wait"), [(0.6, 0.3, "75"), (0.3, 0.6, "86")])
def test_step_that_is_greater_than_the_named_part_is_told(step, decode, of_wait):
    shares = {
        Part.STEP: share(step, step - 0.01, step + 0.01),
        Part.DECODE: share(decode, decode - 0.01, decode + 0.01),
        Part.COLLATE: share(0.1, 0.09, 0.11),
    }
    verdict = judge_loop(a_loop(0.05), shares)
    assert verdict.word is Part.DECODE
    reason = verdict.sentences[1]
    assert f"{of_wait} % of it" in reason
    assert ("take 60 % of the time" in reason) is (step > decode)


@pytest.mark.parametrize(
    ("wait", "others", "word", "possible"),
    [
        # Half of the cores are taken: steps, or waits, may last twice as long as on a quiet one.
        (0.08, 1.0, "step", "decode"),
        (0.08, 0.05, "step", ""),
        (0.03, 1.0, "step", ""),
        (0.15, 1.0, "decode", "step"),
        (0.6, 1.9, "decode", ""),
    ],
)
def test_verdict_on_a_busy_machine_names_the_other_one(monkeypatch, wait, others, word, possible):
    monkeypatch.setattr("fastloop.explain.attach.loop_verdict.usable_cores", lambda: 2)
    shares = {
        Part.STEP: share(1 - wait, 0.999 - wait, 1.001 - wait),
        Part.DECODE: share(wait, wait - 0.001, wait + 0.001),
    }
    verdict = judge_loop(replace(a_loop(0.05), other_cores=others), shares)
    assert verdict.word == word
    told = "The verdict may differ on a quiet machine: other programs used"
    assert (told in verdict.text) is bool(possible)
    assert (f"{possible} is possible, too" in verdict.text) is bool(possible)
    assert ("a perfect loader would save" in verdict.text) is (word == "step" and not possible)
    assert len(verdict.sentences) <= 3


def test_verdict_on_a_busy_machine_does_not_name_a_word_that_says_nothing(monkeypatch):
    """With quicker steps two parts of the wait overlap, so that no part would be the greatest."""
    monkeypatch.setattr("fastloop.explain.attach.loop_verdict.usable_cores", lambda: 2)
    shares = {Part.STEP: share(0.92, 0.91, 0.93), Part.DECODE: share(0.08, -0.01, 0.09)}
    verdict = judge_loop(replace(a_loop(0.05), other_cores=1.0), shares)
    assert verdict.word == "step"
    assert "on this busy machine" in verdict.text
    assert "is possible, too" not in verdict.text


def lines_of(**shares: float) -> tuple[StepLine, ...]:
    return tuple(
        StepLine(place=f"train.py:{name[1:]}", code=f"code_{name}()", share=value)
        for name, value in shares.items()
    )


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (StepLines(), []),
        (StepLines(of_loop=lines_of(_12=0.7, _11=0.25, _13=0.05)), ["train.py:12", "train.py:11"]),
        # The functions that the longest line calls are told if it has nearly all of the time.
        (
            StepLines(of_loop=lines_of(_12=0.7, _11=0.3), of_called=lines_of(_3=0.5)),
            ["train.py:12", "train.py:11"],
        ),
        (
            StepLines(of_loop=lines_of(_12=0.9), of_called=lines_of(_3=0.5, _4=0.1)),
            ["train.py:12", "train.py:3"],
        ),
        # A library has the loop, so that its call is the loop's own line.
        (StepLines(of_loop=lines_of(_9=1.0), of_called=lines_of(_3=0.5)), ["train.py:3"]),
    ],
)
def test_lines_of_the_step_are_told_if_the_step_limits_the_loop(lines, told):
    waiting = {Part.STEP: share(0.4, 0.4, 0.4), Part.DECODE: share(0.6, 0.59, 0.61)}
    stepping = {Part.STEP: share(0.98, 0.97, 0.99), Part.DECODE: share(0.02, 0.01, 0.03)}
    loop = replace(a_loop(0.05), step_lines=lines)
    sentences = judge_loop(loop, stepping).sentences[1:]
    assert re.findall(r"at (train\.py:\d+) \(code_", ". ".join(sentences)) == told
    assert "code_" not in "".join(judge_loop(loop, waiting).sentences)


@pytest.mark.parametrize(("wait", "workers"), [(0.02, 0), (0.02, 2), (0.5, 0), (0.5, 2)])
def test_no_bound_is_told_of_steps_that_were_only_seen_beside_workers(wait, workers):
    shares = {
        Part.STEP: share(1 - wait, 1 - wait - 0.01, 1 - wait + 0.01),
        Part.DECODE: share(wait, wait - 0.01, wait + 0.01),
    }
    sentence = judge_loop(a_loop(0.05, workers), shares).sentences[0]
    assert ("a perfect loader would save" in sentence) == (wait < 0.1 and not workers)
    assert (" ms or less" in sentence) == (wait > 0.1 and workers > 0)


@pytest.mark.parametrize(
    ("workers", "is_interval", "told"),
    [
        (0, True, "its 10 s would be 4 s (between 3 s and 5 s)"),
        # Without workers the steps may be quicker: only the upper end is a bound.
        (2, True, "its 10 s would be 5 s or less"),
        (0, False, "its 10 s would be 4 s"),  # the range of too few batches is no interval
    ],
)
def test_seconds_of_a_perfect_loader_have_the_interval_of_the_wait(workers, is_interval, told):
    step = Estimate(value=0.4, low=0.3, high=0.5, is_interval=is_interval)
    wait = Estimate(value=0.6, low=0.5, high=0.7, is_interval=is_interval)
    verdict = judge_loop(a_loop(10.0, workers), {Part.STEP: step, Part.DECODE: wait})
    assert verdict.sentences[0].endswith(told)


def test_seconds_have_no_bounds_that_are_shown_alike():
    shares = {Part.STEP: share(0.4, 0.4, 0.40001), Part.DECODE: share(0.6, 0.59999, 0.6)}
    assert judge_loop(a_loop(10.0), shares).sentences[0].endswith("would be 4 s")


def test_start_of_each_epoch_is_told_by_the_epoch():
    """A batch has no start: four passes of 25 batches, whose starts take 6 of 10 seconds."""
    shares = {Part.STEP: share(0.4, 0.39, 0.41), Part.START_UP: share(0.6, 0.59, 0.61)}
    loop = replace(a_loop(10.0), passes=cast("Any", (None,) * 4))
    reason = judge_loop(loop, shares).sentences[1]
    assert "1,500 ms an epoch" in reason
    assert "a batch" not in reason
    shares[Part.DECODE] = shares.pop(Part.START_UP)
    assert "60 ms a batch" in judge_loop(loop, shares).sentences[1]


def usage_of(wall_s: float, delay: float, workers: int, made_s: float = 1.0) -> LoopUsage:
    """A loop of one second. made_s: CPU time of each worker, which makes batches without a wait."""
    step = {"wall_ns": wall_s * 1e9, "delay_ns": delay * wall_s * 1e9}
    made = {"wall_ns": made_s * 1e9, "cpu_ns": made_s * 1e9}
    return LoopUsage(
        steps=({"parts": step, "wall_ns": 1e9},), makes=({"parts": made, **made},), workers=workers
    )


@pytest.mark.parametrize(
    ("usage", "other_cores", "contention"),
    [
        (usage_of(1.0, 0.4, 2), 0.0, 0.4),
        (usage_of(1.0, 0.4, 2), 2.0, 0.2),  # others use as much as the two workers
        # Workers that are idle most of the time have no share of the cores while they are.
        (usage_of(1.0, 0.4, 2, made_s=0.05), 0.9, 0.04),
        (usage_of(1.0, 0.4, 0), 0.0, 0.0),
        (usage_of(0.1, 0.4, 2), 0.0, 0.0),  # too short to tell
        (LoopUsage(), 0.0, 0.0),
    ],
)
def test_step_that_waits_for_cores_of_workers_is_a_part_of_its_own(usage, other_cores, contention):
    decode = np.zeros((100, 4), np.int64)
    decode[:, 0] = 250_000
    loop = replace(a_loop(0.05, 2), waits_ns=decode, usage=usage, other_cores=other_cores)
    shares = share_of_parts(loop)
    assert sum(each.value for each in shares.values()) == pytest.approx(1.0)
    assert shares[Part.CONTENTION].value == pytest.approx(0.5 * contention)
    assert shares[Part.STEP].value == pytest.approx(0.5 * (1 - contention))
    assert wait_share(shares).value == pytest.approx(0.5)


def test_perfect_loader_takes_no_cores_from_the_step():
    shares = {
        Part.STEP: share(0.5, 0.48, 0.52),
        Part.CONTENTION: share(0.4, 0.39, 0.41),
        Part.DECODE: share(0.1, 0.07, 0.13),
    }
    verdict = judge_loop(a_loop(0.05, 2), shares)
    assert verdict.word is Part.CONTENTION
    assert "would be 26 ms or less" in verdict.sentences[0]
    waiting = shares | {Part.STEP: share(0.1, 0.08, 0.12), Part.DECODE: share(0.5, 0.48, 0.52)}
    assert judge_loop(a_loop(0.05, 2), waiting).word is Part.DECODE


def findings_of(*gains: float, is_bound: bool = False, basis: str = "") -> ScriptFindings:
    change = Change(settings={"num_workers": 2})
    changes = tuple(
        LoopWhatIf(change=change, gain=gain, is_bound=is_bound, basis=basis) for gain in gains
    )
    shares = {Part.STEP: share(0.5, 0.4, 0.6), Part.DECODE: share(0.5, 0.4, 0.6)}
    loop = LoopFindings(
        name="DataLoader at train.py:9",
        facts={"place": "train.py:9"},
        passes=1,
        loaders=1,
        batches=100,
        seconds=20.0,
        step_ms=1.0,
        load_cores=1.0,
        step_cores=0.1,
        other_cores=0.0,
        samples_wait=False,
        verdict=Verdict(word=Part.DECODE, sentences=("It waits",)),
        shares=shares,
        model_ratio=1.0,
        what_ifs=changes,
        causes=(),
        step_lines=StepLines(),
        coverage=1.0,
        ranks=None,
    )
    return ScriptFindings(command="train.py", status=0, loops=(loop,), seconds=25.0)


@pytest.mark.parametrize(
    ("findings", "sentence"),
    [
        (
            findings_of(0.3, 0.1),
            "Of the script's 25 s, 6 s can be saved: 6 s at train.py:9 (num_workers=2); "
            "5 s are outside of loops over DataLoaders.",
        ),
        (
            findings_of(0.3, is_bound=True),
            "Of the script's 25 s, at most 6 s can be saved: 6 s at train.py:9 (num_workers=2); "
            "5 s are outside of loops over DataLoaders.",
        ),
        (
            findings_of(0.3, basis="samples wait"),
            "Of the script's 25 s, at least 6 s can be saved: 6 s at train.py:9 (num_workers=2); "
            "5 s are outside of loops over DataLoaders.",
        ),
        (
            findings_of(),
            "Of the script's 25 s, 5 s are outside of loops over DataLoaders; no change of a "
            "loader is predicted to save time.",
        ),
    ],
)
def test_last_line_is_on_the_whole_script(findings, sentence):
    assert " ".join(format_findings(findings).splitlines()[-3:]).endswith(sentence)


@pytest.mark.parametrize(
    ("bounds", "shown"),
    [
        ({}, "30 %"),
        ({"is_bound": True}, "at most 30 %"),
        ({"basis": "samples wait"}, "at least 30 %"),
    ],
)
def test_row_of_a_change_says_which_bound_its_gain_is(bounds, shown):
    (loop,) = findings_of(0.3, **bounds).loops
    assert what_if_rows(loop)[1] == ("num_workers=2", shown)


def test_saving_on_a_busy_machine_says_how_far_it_may_be_off(monkeypatch):
    monkeypatch.setattr(findings_text, "usable_cores", lambda: 2)
    findings = findings_of(0.3)
    busy = replace(findings, loops=(replace(findings.loops[0], other_cores=1.0),))
    said = " ".join(format_findings(busy).split())
    assert "6 s can be saved" in said
    assert said.count("may be 70 % off") == 2
    assert "70 % off" not in format_findings(findings)


def test_sum_of_an_upper_and_a_lower_bound_is_called_neither():
    (most,), (least,) = findings_of(0.3, is_bound=True).loops, findings_of(0.1, basis="waits").loops
    findings = replace(findings_of(), loops=(most, least), seconds=50.0)
    assert "about 8 s can be saved" in " ".join(format_findings(findings).split())


@pytest.mark.parametrize("gains", [(), (0.3,)])
@pytest.mark.parametrize("taken", [0.0, 0.2])
def test_predictions_are_said_to_leave_out_what_workers_take_from_the_step(gains, taken):
    """A loop that its workers slow down, and no other number of them that is predicted to help."""
    found = findings_of(*gains)
    (loop,) = found.loops
    shares = loop.shares | {Part.CONTENTION: share(taken, taken, taken)}
    text = format_findings(replace(found, loops=(replace(loop, shares=shares),)))
    told = "which no prediction contains: --try measures them"
    assert (told in " ".join(text.split())) == (taken > 0)
    assert max(map(len, text.splitlines())) <= LINE_WIDTH


@pytest.mark.parametrize("gains", [(), (0.3,)])
@pytest.mark.parametrize(("step", "others"), [(0.5, 0.0), (2.0, 0.0), (1.0, 1.5)])
def test_predictions_say_that_workers_would_share_cores(monkeypatch, gains, step, others):
    monkeypatch.setattr("fastloop.explain.attach.findings_text.usable_cores", lambda: 2)
    found = findings_of(*gains)
    loop = replace(found.loops[0], step_cores=step, other_cores=others)
    text = " ".join(format_findings(replace(found, loops=(loop,))).split())
    assert ("would share 2 cores with the step" in text) == bool(gains and step >= 1)
    assert ("and other programs 1.5:" in text) == bool(gains and others)


@pytest.mark.parametrize(
    ("others", "told"),
    [
        (0.0, "may be 20 % off"),
        (0.1, "may be 20 % off"),
        (1.0, "may be 70 % off, 20 % on a quiet"),
        (
            1.8,
            "tell little, as other programs used 1.8 of 2 cores; on a quiet machine they may be 20",
        ),
    ],
)
def test_error_of_predictions_grows_with_the_load(monkeypatch, others, told):
    monkeypatch.setattr("fastloop.explain.attach.findings_text.usable_cores", lambda: 2)
    found = findings_of(0.3)
    loop = replace(found.loops[0], other_cores=others)
    text = " ".join(format_findings(replace(found, loops=(loop,))).split())
    assert told in text
    assert ("other programs used 1 of 2 cores" in text) == (others == 1)


def test_command_is_shown_without_characters_that_a_terminal_executes():
    found = replace(findings_of(), command="train.py 'a\nb\033[2J'")
    assert format_findings(found).splitlines()[0] == "fastloop: train.py 'a b?[2J'"


@pytest.mark.parametrize(
    ("present", "numbers", "pays"),
    [
        (0, [], False),
        (0, [2], True),
        (1, [], True),
        (1, [4, 0], True),
        (1, [0, 4], False),  # "use num_workers=2" beside "num_workers=0: 49 %"
    ],
)
def test_more_workers_are_advised_only_if_the_predictions_agree(present, numbers, pays):
    what_ifs = tuple(
        LoopWhatIf(change=Change(settings={"num_workers": count}), gain=0.5 - 0.1 * place)
        for place, count in enumerate(numbers)
    )
    known, missed = (
        LoopPredictions(model_ratio=ratio, what_ifs=what_ifs).do_workers_pay(present)
        for ratio in (1.0, 9.0)
    )
    assert known is pays
    assert missed is True


def test_change_without_a_prediction_is_listed_with_the_reason():
    fastloader = Change(is_fastloader=True, text="fastloop.FastLoader at train.py:3")
    unknown = LoopWhatIf(change=fastloader, gain=None, basis="its lock is not seen")
    found = findings_of()
    loop = replace(found.loops[0], what_ifs=(unknown,))
    lines = format_findings(replace(found, loops=(loop,))).splitlines()
    (row,) = [each for each in lines if each.startswith(fastloader.name)]
    assert row.endswith("not predicted")
    text = " ".join(lines)
    assert "fastloop.FastLoader is not predicted: its lock is not seen." in text
    assert "no other setting of its loader is predicted to save 2 %" in text
    assert text.endswith("no change of a loader is predicted to save time.")


def test_file_has_a_change_by_its_name():
    (loop,) = json.loads(to_json(findings_of(0.3, is_bound=True)))["loops"]
    assert loop["what_ifs"] == [
        {"change": "num_workers=2", "gain": 0.3, "is_bound": True, "is_least": False}
        | {"basis": "", "is_native": False}
    ]
    (loop,) = json.loads(to_json(findings_of(0.3, basis="samples wait")))["loops"]
    assert loop["what_ifs"][0]["is_least"] is True


@pytest.mark.parametrize(
    ("status", "way"),
    [
        (3, "failed (exit status 3)"),
        (-signal.SIGTERM, "was killed by SIGTERM"),
        (-(signal.SIGRTMIN + 1), f"was killed by signal {signal.SIGRTMIN + 1}"),
    ],
)
def test_end_of_a_script_without_a_loop_is_told(status, way):
    text = describe_nothing(ScriptFindings(command="a.py", status=status, loops=()))
    assert text.startswith(f"fastloop: the script {way} before it had worked on a batch")
