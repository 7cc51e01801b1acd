"""bench and bench_all: user loaders, measured in one process by the rules of a sweep."""

from __future__ import annotations

import inspect
import itertools
import json
import random
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset

import fastloop
from fastloop.core import spans, time_limits
from fastloop.core.auto_trials import LOOKS
from fastloop.core.load_text import load_text
from fastloop.core.types import Invalid
from fastloop.explain.explain_loop import explain_loop
from fastloop.trial import window
from fastloop.tune.loop_tuning import tune_loop

DATA = TensorDataset(torch.arange(60.0).view(30, 2), torch.arange(30))


class SimulatedClock:
    """Clock that advances with the loaders below."""

    def __init__(self):
        self.ns, self.noise = 0, random.Random(0)

    def loader(self, batch_ns: int):
        def epochs(number):
            for batch in DataLoader(DATA, batch_size=10):
                self.ns += int(batch_ns * self.noise.uniform(0.98, 1.02))
                yield batch

        return epochs


@pytest.fixture
def clock(monkeypatch):
    simulated = SimulatedClock()
    monkeypatch.setattr(window, "now_ns", lambda: simulated.ns)
    return simulated


@pytest.mark.parametrize("seconds", [None, 1000.0])
def test_long_measurement_says_so_before_its_first_round(clock, capfd, seconds):
    """As 20 epochs of 90 s, of which nobody would see anything for minutes."""
    loader = clock.loader(30_000_000_000)
    fastloop.bench(loader, trials=3, seconds=seconds)
    fastloop.bench_all({"a": loader, "b": loader}, trials=3, seconds=seconds)
    lines = capfd.readouterr().err.splitlines()
    found = [line.split(" rounds of ")[0] for line in lines if "seconds= and batches=" in line]
    assert found == ([] if seconds else ["bench: 3", "bench_all: 3"])


@pytest.mark.heavy
def test_bench_all_ranks_a_slower_loader_behind(clock):
    loaders = {"slow": clock.loader(3_000_000), "fast": clock.loader(1_000_000)}
    comparison = fastloop.bench_all(loaders, trials=10)
    assert comparison.ranking.ranks == {"fast": 1, "slow": 2}
    assert comparison.samples == 30
    ratio = comparison.ratios["fast"]
    assert ratio is not None
    assert ratio.low < 1 / 3 < ratio.high
    assert comparison.seconds["fast"] == pytest.approx([0.003] * 10, rel=0.02)
    rows = [line.split() for line in str(comparison).splitlines()]
    assert [row[:2] for row in rows if row[:1] in (["fast"], ["slow"])] == [
        ["fast", "1"],
        ["slow", "2"],
    ]
    assert max(map(len, str(comparison).splitlines())) <= 80
    assert [*comparison] == ["fast", "slow"]
    fast = comparison["fast"]
    assert (fast.rank, fast.seconds, fast.ratio) == (1, comparison.seconds["fast"], ratio)
    assert fast.samples_per_s == pytest.approx(30 / 0.003, rel=0.05)
    assert comparison["slow"].ratio is None
    assert {name: times.rank for name, times in comparison.items()} == comparison.ranking.ranks
    with pytest.raises(KeyError, match="DataLoader"):
        comparison["DataLoader"]


def test_bench_all_goes_on_until_a_look_decides_it(clock):
    loaders = {"slow": clock.loader(3_000_000), "fast": clock.loader(1_000_000)}
    comparison = fastloop.bench_all(loaders, trials="auto", min_window_s=0)
    assert {len(seconds) for seconds in comparison.seconds.values()} == {LOOKS[0]}
    assert comparison.ranking.share is not None
    assert comparison.ranking.ranks == {"fast": 1, "slow": 2}
    alike = {"a": clock.loader(1_000_000), "b": clock.loader(1_004_000)}
    tied = fastloop.bench_all(alike, trials="auto", min_window_s=0)
    (count,) = {len(seconds) for seconds in tied.seconds.values()}
    assert count in LOOKS[1:]
    assert tied.ranking.equal or count == LOOKS[-1]


def test_times_are_shown_in_the_unit_that_fits(clock):
    result = fastloop.bench(clock.loader(1_000_000), trials=3, min_window_s=0)
    assert " ms a trial [" in repr(result)
    table = repr(fastloop.bench_all({"a": clock.loader(1_000)}, trials=3, min_window_s=0))
    assert " us [" in table
    assert " s [" not in table


def test_one_trial_of_each_says_that_nothing_is_proven(clock):
    loaders = {"a": clock.loader(1_000_000), "b": clock.loader(3_000_000)}
    text = repr(fastloop.bench_all(loaders, trials=1, min_window_s=0))
    rows = [line.split()[:2] for line in text.splitlines() if line[:2] in ("a ", "b ")]
    assert rows == [["a", "-"], ["b", "-"]]
    told = " ".join(text.split())
    assert "one trial of each shows no noise, so no difference is proven; trials=3 or more" in told


def test_last_line_of_a_notebook_cell_shows_the_table(clock):
    result = fastloop.bench(clock.loader(2_000_000_000), trials=2)
    comparison = fastloop.bench_all({"a": clock.loader(1_000_000)}, trials=3)
    for shown in (result, comparison):
        assert repr(shown) == str(shown)
        assert "seconds=[" not in repr(shown)
        assert shown._repr_html_().count("<tr>") == shown._repr_html_().count("</tr>") >= 2
    assert "e+" not in str(result)


def test_results_become_frames_and_json(clock):
    loaders = {"slow": clock.loader(3_000_000), "fast": clock.loader(1_000_000)}
    comparison = fastloop.bench_all(loaders, trials=10)
    frame = comparison.to_frame()
    assert frame["rank"].to_dict() == {"fast": 1, "slow": 2}
    assert frame.loc["fast", "seconds_median"] == pytest.approx(0.003, rel=0.02)
    assert frame.loc["fast", "ratio_low"] < 1 / 3 < frame.loc["fast", "ratio_high"]
    assert frame.loc["slow", "ratio"] != frame.loc["slow", "ratio"]  # NaN: it is the first
    values = json.loads(comparison.to_json())
    assert values["ranking"]["faster"] == {"fast": [], "slow": ["fast"]}
    assert values["seconds"] == comparison.seconds
    result = fastloop.bench(clock.loader(2_000_000), trials=4, epochs=2)
    rates = result.to_frame()["samples_per_s"]
    assert rates.median() == pytest.approx(result.samples_per_s)
    assert json.loads(result.to_json())["samples_per_s"] == result.samples_per_s


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports it")
def test_results_begin_with_whether_the_machine_was_quiet():
    batches = [torch.zeros(4)] * 3

    def step(_):
        time.sleep(0.1)

    one = fastloop.bench(batches, step, trials=2, min_window_s=0)
    several = fastloop.bench_all({"a": batches, "b": batches}, step, trials=1, min_window_s=0)
    for result in (one, several):
        assert result.machine_load is not None
        assert result.machine_load.stretches == 2
        sentence = load_text(result.machine_load)
        assert " ".join(repr(result).split()).startswith(sentence)
        assert result._repr_html_().startswith(f"<p>{sentence}</p>")
        assert json.loads(result.to_json())["machine_load"]["cores"] >= 1


def test_names_of_loaders_are_escaped_in_a_notebook(clock):
    comparison = fastloop.bench_all({"<script>": clock.loader(1_000_000)}, trials=3)
    assert "<script>" not in comparison._repr_html_()
    assert "&lt;script&gt;" in comparison._repr_html_()


def test_functions_with_and_without_the_epochs_number_are_loaders():
    numbers = []

    def numbered(epoch):
        numbers.append(epoch)
        return DataLoader(DATA, 10)

    loaders = {"plain": lambda: DataLoader(DATA, 10), "numbered": numbered}
    assert fastloop.bench_all(loaders, trials=1, min_window_s=0).samples == 30
    assert fastloop.bench(loaders["plain"], trials=1, min_window_s=0).samples == 30
    assert numbers
    assert {*map(type, numbers)} == {int}


@pytest.mark.parametrize("measure", [fastloop.bench, lambda data: fastloop.bench_all({"a": data})])
def test_a_dataset_is_refused_with_what_to_pass(measure):
    with pytest.raises(ValueError, match=r"loader=TensorDataset: .*DataLoader\(dataset"):
        measure(DATA)


def test_bench_and_bench_all_take_their_settings_in_one_order():
    one, many = (
        [*inspect.signature(function).parameters.values()][1:]
        for function in (fastloop.bench, fastloop.bench_all)
    )
    shared = [each.name for each in many if each.name in {other.name for other in one}]
    assert shared == [each.name for each in one]
    assert {each.kind for each in one[1:]} == {inspect.Parameter.KEYWORD_ONLY}


def test_public_names_can_be_completed():
    assert {*fastloop.__all__} <= {*dir(fastloop)}
    assert [name for name in dir(fastloop) if name not in fastloop.__all__ and name[0] != "_"] == []


@pytest.mark.parametrize(
    ("package", "function"), [(fastloop.explain, explain_loop), (fastloop.tune, tune_loop)]
)
def test_package_that_is_called_shows_the_parameters_of_its_function(package, function):
    shown, own = (inspect.signature(each).parameters for each in (package, function))
    assert [(name, each.default, each.kind) for name, each in shown.items()] == [
        (name, each.default, each.kind) for name, each in own.items()
    ]


def test_bench_all_passes_every_batch_to_the_step():
    sizes = []
    loader = DataLoader(DATA, batch_size=7)
    fastloop.bench_all(
        {"a": loader},
        step=lambda batch: sizes.append(len(batch[1])),
        trials=3,
        epochs=2,
        min_window_s=0,
    )
    assert sum(sizes) == 30 * (1 + 3 * 2)


class Sizes(list):
    """A step that keeps the sizes of batches; false before the first one."""

    def __call__(self, batch):
        self.append(len(batch[0]))


@pytest.mark.heavy
@pytest.mark.parametrize(
    "measure",
    [fastloop.bench, lambda a, step, trials: fastloop.bench_all({"a": a}, step, trials=trials)],
)
def test_a_step_may_be_an_object_that_is_false(measure):
    sizes = Sizes()
    measure(DataLoader(DATA, batch_size=10), sizes, trials=1)
    assert {*sizes} == {10}


def test_bench_all_calls_set_epoch_of_the_sampler():
    class Sampler(torch.utils.data.SequentialSampler):
        epochs: list[int] = []  # noqa: RUF012

        def set_epoch(self, epoch):
            self.epochs.append(epoch)

    loader = DataLoader(DATA, batch_size=10, sampler=Sampler(DATA))
    fastloop.bench_all({"a": loader}, trials=1, epochs=2, min_window_s=0)
    assert Sampler.epochs == [0, 0, 0, 1]  # digested, warmed up, timed


def test_bench_all_rejects_loaders_of_other_samples():
    changed = TensorDataset(DATA.tensors[0] + 1, DATA.tensors[1])
    loaders = {"a": DataLoader(DATA, 10), "b": DataLoader(changed, 10)}
    with pytest.raises(Invalid, match=r"b does not deliver what a does: .*same_data=False"):
        fastloop.bench_all(loaders, trials=1)
    assert fastloop.bench_all(loaders, trials=1, same_data=False).samples == 30
    short = {"a": DataLoader(DATA, 7), "b": DataLoader(DATA, 7, drop_last=True)}
    with pytest.raises(Invalid, match=r"28 samples delivered, not 30$"):
        fastloop.bench_all(short, trials=1, same_data=False)


def test_bench_rejects_an_iterator():
    with pytest.raises(ValueError, match="one epoch only"):
        fastloop.bench_all({"a": iter(DataLoader(DATA))}, trials=1)
    with pytest.raises(ValueError, match="one epoch only"):
        fastloop.bench(iter(DataLoader(DATA)), trials=1)


@pytest.mark.parametrize(
    "arguments", [{"trials": 0}, {"epochs": 0}, {"batches": 0}, {"seconds": 0}]
)
def test_bench_names_an_invalid_number(arguments):
    with pytest.raises(ValueError, match="=0"):
        fastloop.bench_all({"a": DataLoader(DATA)}, **arguments)
    with pytest.raises(ValueError, match="=0"):
        fastloop.bench(DataLoader(DATA), **arguments)


def test_results_of_numbers_of_numpy_become_json(clock):
    numbers = {"trials": np.int64(3), "epochs": np.int64(2)}
    for result in (
        fastloop.bench(clock.loader(1_000_000), **numbers),
        fastloop.bench_all({"a": clock.loader(1_000_000)}, **numbers),
    ):
        assert json.loads(result.to_json())["epochs"] == 2


@pytest.mark.parametrize("trials", [2.5, "3"])
def test_bench_takes_whole_numbers(trials):
    with pytest.raises(ValueError, match=r"trials=.+: allowed is 1"):
        fastloop.bench(DataLoader(DATA), trials=trials)


def test_bench_names_a_wrong_device_and_loaders_without_names():
    with pytest.raises(TypeError, match="step=5: allowed is a function of a batch"):
        fastloop.bench(DataLoader(DATA), 5)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="device=toaster: allowed are auto, cpu, mps, cuda"):
        fastloop.bench(DataLoader(DATA), device="toaster")
    with pytest.raises(ValueError, match="loaders=list: allowed: a dict of loaders by name"):
        fastloop.bench_all([DataLoader(DATA)])  # pyright: ignore[reportArgumentType]


def test_bench_reports_seconds_waits_and_limit(clock, monkeypatch):
    monkeypatch.setattr(spans, "now_ns", lambda: clock.ns)
    report = fastloop.bench(clock.loader(2_000_000), trials=6, epochs=2)
    assert report.seconds == pytest.approx([0.012] * 6, rel=0.02)
    assert (report.samples, report.epochs, len(report.wait_s)) == (30, 2, 3)
    assert report.samples_per_s == pytest.approx(5000, rel=0.02)
    low, high = report.samples_per_s_interval or (0, 0)
    assert low < report.samples_per_s < high
    assert report.first_batch_s == pytest.approx(0.002, rel=0.03)
    assert report.wait_fraction == pytest.approx(1)
    assert report.limit_samples_per_s is not None
    assert report.limit_fraction == report.samples_per_s / report.limit_samples_per_s
    lines = str(replace(report, machine_load=None)).splitlines()
    assert lines[0] == "30 samples in 3 batches, 6 trials of 2 epochs each, device cpu"
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 6


def test_bench_repeats_short_epochs_and_tells_the_seconds_of_those_asked_for(clock):
    report = fastloop.bench(clock.loader(2_000_000), trials=3, epochs=2, min_window_s=0.1)
    assert report.repeats in (9, 10)  # 12 ms repeated for 1.1 * 0.1 s
    assert report.seconds == pytest.approx([0.012] * 3, rel=0.02)
    assert fastloop.bench(clock.loader(2_000_000), trials=1, min_window_s=0).repeats == 1


def test_bench_ends_after_so_many_batches_and_seconds(clock, monkeypatch):
    monkeypatch.setattr(time_limits, "now_ns", lambda: clock.ns)
    loader = clock.loader(1_000_000_000)
    report = fastloop.bench(loader, trials=20, batches=2, seconds=5, min_window_s=0)
    assert (report.samples, len(report.wait_s)) == (20, 2)
    assert report.seconds == pytest.approx([2.0] * 3, rel=0.02)  # the third ends after 6 s
    loaders = {"a": loader, "b": loader}
    bench = fastloop.bench_all(loaders, trials=20, batches=1, seconds=3, min_window_s=0)
    assert [len(trials) for trials in bench.seconds.values()] == [2, 2]
    assert len(bench.rounds) == 2


def test_bench_all_compares_the_samples_of_the_first_batches():
    loaders = {"a": DataLoader(DATA, 10), "b": DataLoader(Subset(DATA, range(29, -1, -1)), 10)}
    assert fastloop.bench_all(loaders, trials=1).samples == 30
    with pytest.raises(Invalid, match="same_data=False allows it"):
        fastloop.bench_all(loaders, trials=1, batches=1)


def test_bench_with_a_user_step_reports_no_limit():
    sizes = []
    report = fastloop.bench(
        DataLoader(DATA, batch_size=7),
        lambda batch: sizes.append(len(batch[1])),
        trials=2,
        epochs=3,
        min_window_s=0,
    )
    assert sum(sizes) == 30 * (1 + 2 * 3 + 1)
    assert report.limit_fraction is None
    assert report.samples_per_s_interval is None
    assert "limit" not in str(report)
    assert "this machine can" not in str(report)


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        ([], "it yields nothing"),
        ([("a", "b")], "a batch is tensors of one length"),
        ([(torch.zeros(2), torch.zeros(3))], "a batch is tensors of one length"),
        (lambda epoch: itertools.repeat(torch.zeros(1000, 2)), "without end"),
    ],
)
def test_bench_rejects_a_loader_without_batches_or_end(loader, message):
    with pytest.raises(Invalid, match=message) as error:
        fastloop.bench(loader, trials=1)
    assert "\n" not in str(error.value)


def test_bench_all_stops_a_loader_that_never_ends():
    endless = {"a": DataLoader(DATA, 10), "b": lambda epoch: itertools.repeat(DATA[:10])}
    with pytest.raises(Invalid, match="b does not deliver what a does: it yields more than 30"):
        fastloop.bench_all(endless, trials=1)


@pytest.mark.parametrize("loader", [None, 3])
def test_bench_rejects_an_object_that_is_no_loader(loader):
    with pytest.raises(ValueError, match=r"not (NoneType|int)"):
        fastloop.bench(loader, trials=1)
