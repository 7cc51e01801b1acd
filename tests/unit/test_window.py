"""Window, spans and metrics, with an injected clock and known answers."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from known_results import result_of
from options import MYDATASET
from tensordict import TensorDict

from fastloop.core import device_time, spans, stats
from fastloop.core.cgroup import usable_cores
from fastloop.core.device_time import StepMarks
from fastloop.core.machine_counters import LEAST_SECONDS
from fastloop.core.result import Attribution, measurements
from fastloop.core.spans import Spans
from fastloop.core.tracked_metrics import metrics
from fastloop.trial import unread_batches, window
from fastloop.trial.instrumented_pass import run_instrumentation
from fastloop.trial.timed_trial import run_trial

CPU = torch.device("cpu")


@pytest.fixture
def clock(monkeypatch):
    """Clock that advances only when a test sets it, and counts how often it is read."""

    class ManualClock:
        now, reads = 0, 0

        def __call__(self) -> int:
            self.reads += 1
            return self.now

    manual = ManualClock()
    monkeypatch.setattr(window, "now_ns", manual)
    monkeypatch.setattr(spans, "now_ns", manual)
    monkeypatch.setattr(device_time, "now_ns", manual)
    return manual


def test_window_reads_the_clock_twice_around_whole_epochs(clock):
    batches = []

    def epochs(epoch):
        clock.now += 100  # starting an epoch costs time inside the window
        for number in range(3):
            clock.now += 10
            yield (epoch, number)

    clock.now = 5
    timing = window.time_epochs(epochs, batches.append, 2, CPU, sum)
    assert batches == list(itertools.product(range(2), range(3)))
    assert timing.sizes == ([0, 1, 2], [1, 2, 3])  # what `sum` counts of the batches
    assert (timing.start_ns, timing.stop_ns) == (5, 5 + 2 * 100 + 6 * 10)
    assert clock.reads == 2


@pytest.mark.parametrize(
    ("seconds", "repeats"), [(0.3, 1), (5.0, 1), (0.29, 2), (0.11, 3), (0.01, 33)]
)
def test_epochs_are_repeated_for_a_window_of_the_least_length(seconds, repeats):
    assert window.num_repeats(seconds, 0.3) == repeats
    assert window.num_repeats(seconds, 0) == 1


def test_window_of_repeated_epochs_tells_the_seconds_of_those_asked_for(prepared_job):
    overrides = (*MYDATASET[:-1], "min_window_s=0.2", "epochs=2", "benchmark=all")
    job, prepared = prepared_job("loader=preload", *overrides)
    trial = run_trial(job, prepared, 0, spans.now_ns())
    traversal, training = trial.benchmarks["traversal"], trial.benchmarks["training"]
    length_s = spans.seconds_between(traversal.start_ns, traversal.stop_ns)
    assert traversal.repeats > 1
    assert traversal.seconds == pytest.approx(length_s / traversal.repeats)
    assert traversal.samples == 2 * 203
    assert len(training.losses) == 2
    cold = replace(job, cache="cold")
    assert (job.shortest_window_s, cold.shortest_window_s) == (0.2, 0)


def test_rows_are_counted_by_the_first_tensor():
    rows, labels = torch.zeros(3, 2), torch.zeros(3)
    trees = [rows, (rows, labels), [rows], {"name": "a", "x": rows}, TensorDict({"x": rows}, [3])]
    for tree in (*trees, Batch(rows, labels), ((rows, labels), labels)):
        assert window.row_counter(tree)(tree) == window.count_rows(tree) == 3


class Batch(NamedTuple):
    source: torch.Tensor
    targets: torch.Tensor


def test_warm_up_runs_the_epoch_that_it_is_given():
    batches = []
    window.drain(lambda epoch: iter([(epoch, 0), (epoch, 1)]), batches.append, 7, CPU)
    assert batches == [(7, 0), (7, 1)]


def test_replay_cycles_over_all_batches(clock):
    steps = []

    def consume(batch):
        clock.now += 10
        steps.append(batch)

    timing = window.time_replay(["a", "b", "c"], consume, 5, CPU)
    assert steps == ["a", "b", "c", "a", "b"]
    assert timing.stop_ns - timing.start_ns == 50


def time_two_epochs(consume):
    window.time_epochs(lambda epoch: iter([epoch]), consume, 2, CPU, int)


def replay_two_steps(consume):
    window.time_replay(["a"], consume, 2, CPU)


def time_instrumented_epoch_of_two_batches(consume):
    window.time_instrumented_epoch(lambda epoch: [epoch] * 2, consume, Spans(), CPU)


@pytest.mark.parametrize(
    "measure", [time_two_epochs, replay_two_steps, time_instrumented_epoch_of_two_batches]
)
def test_clock_is_read_after_ranks_have_met_and_after_the_device_is_done(monkeypatch, measure):
    events = []

    def read_clock() -> int:
        events.append("clock")
        return len(events)

    monkeypatch.setattr(window, "now_ns", read_clock)
    monkeypatch.setattr(window, "barrier", lambda: events.append("barrier"))
    monkeypatch.setattr(window, "synchronize", lambda device: events.append(f"wait for {device}"))
    measure(lambda batch: events.append("step"))
    before, after = ["wait for cpu", "barrier", "clock"], ["wait for cpu", "clock"]
    assert events == [*before, "step", "step", *after]


def test_spans_include_each_wait_and_exclude_the_loop_body(clock):
    def batches():
        for wait_ns in (100, 20, 30):
            clock.now += wait_ns
            yield wait_ns

    recorder = Spans()
    for _ in recorder.each("wait", batches()):
        clock.now += 1000
    assert [round(seconds * 1e9) for seconds in recorder.seconds("wait")] == [100, 20, 30]


def test_instrumented_epoch_runs_to_its_end_and_keeps_spans(clock):
    recorder = Spans()

    def place(batch):
        clock.now += 7
        return batch

    timing = window.time_instrumented_epoch(
        lambda epoch: iter([epoch] * 4), recorder.time_calls("place", place), recorder, CPU
    )
    assert timing.stop_ns - timing.start_ns == 28
    assert [round(seconds * 1e9) for seconds in recorder.seconds("place")] == [7] * 4
    assert len(recorder.seconds("wait")) == 4


def test_step_is_timed_from_its_placed_batch_to_its_end(clock):
    steps = StepMarks(CPU)

    def place(batch):
        clock.now += 7_000_000
        return batch

    timed_place = steps.mark_start_after(place)

    def consume(batch):
        timed_place(batch)
        clock.now += 500_000_000

    timing = window.time_instrumented_epoch(
        lambda epoch: [epoch] * 4, steps.mark_stop_after(consume), Spans(), CPU
    )
    assert timing.seconds == pytest.approx(4 * 0.507)
    assert steps.seconds() == pytest.approx(4 * 0.5)


@pytest.mark.parametrize(("idle_s", "fraction"), [(None, 0.75), (0.5, 0.25), (0.0, 0.0)])
def test_stall_fraction_is_that_of_the_loop_or_of_the_device(idle_s, fraction):
    attribution = Attribution(
        seconds=2.0, first_batch_s=1.0, wait_s=[0.5, 0.25], place_s=[0.75], idle_s=idle_s, cpu_s=1.0
    )
    assert attribution.stall_fraction == fraction
    known = result_of([1.0], samples=10, limit=100.0)
    trial = replace(known.trials[0], benchmarks={"training": measurements(known, "traversal")[0]})
    values = metrics(replace(known, trials=[trial], attribution={"training": attribution}))
    assert values["training/stall_fraction"] == fraction


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is here")
def test_blocking_copy_on_cuda_is_no_stall():
    device, recorder = torch.device("cuda", 0), Spans()
    steps = StepMarks(device)
    timed_place = steps.mark_start_after(
        recorder.time_calls("place", lambda batch: batch.to(device))
    )

    def consume(batch):
        timed_place(batch)
        torch.cuda._sleep(20_000_000)  # clock cycles, about 10 ms, which the host does not wait for

    batches = [torch.zeros(64) for _ in range(10)]
    for _ in range(2):  # the first pass warms up the device
        steps.starts.clear()
        steps.stops.clear()
        timing = window.time_instrumented_epoch(
            lambda epoch: batches, steps.mark_stop_after(consume), recorder, device
        )
    assert sum(recorder.seconds("place")[10:]) > 0.5 * timing.seconds
    assert steps.seconds() > 0.8 * timing.seconds


def test_stats_match_known_values():
    assert stats.std([1.0]) is None
    assert stats.std([2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]) == pytest.approx((32 / 7) ** 0.5)
    assert stats.percentile([1, 2, 3, 4, 5], 95) == pytest.approx(4.8)


def test_throughput_is_the_median_over_trials():
    values = metrics(result_of([1.0, 2.0, 4.0], samples=1000, limit=2000.0))
    assert values["traversal/samples_per_s"] == 500
    assert values["traversal/bytes_per_s"] == 4000
    assert values["traversal/limit_fraction"] == 0.25
    assert values["traversal/seconds_mean"] == pytest.approx(7 / 3)
    assert values["traversal/seconds_median"] == 2


def test_metrics_of_preparing_exist_where_a_store_was_written():
    result = result_of([1.0], samples=1000, limit=2000.0)
    assert not [name for name in metrics(result) if name.startswith("prepare/")]
    stored = metrics(replace(result, prepare_s=0.5, disk_mib=3.0))
    assert (stored["prepare/seconds"], stored["prepare/disk_mib"]) == (0.5, 3.0)


def test_metrics_of_one_trial_have_no_deviation():
    assert "traversal/seconds_std" not in metrics(result_of([1.0], samples=1, limit=1.0))


def test_only_a_batch_in_a_mapped_file_may_be_unread(tmp_path):
    path = tmp_path / "rows"
    path.write_bytes(bytes(1 << 16))
    mapped = torch.from_file(str(path), size=1 << 16, dtype=torch.uint8)
    assert unread_batches.may_be_unread((mapped[:64], torch.zeros(3)))
    assert not unread_batches.may_be_unread((mapped[:64].clone(), torch.zeros(3)))
    assert not unread_batches.may_be_unread((torch.zeros(1 << 20).share_memory_(),))


@pytest.mark.parametrize("min_window_s", [0, 0.3])
def test_short_epochs_are_repeated_until_their_cpu_time_can_be_told(prepared_job, min_window_s):
    settings = "benchmark=traversal", "batch_size=64", f"min_window_s={min_window_s}"
    job, prepared = prepared_job("dataset=digits", "loader=index_loop", *settings)
    attribution = run_instrumentation(job, prepared, "traversal")
    assert attribution.cpu_window_s is not None
    is_long = attribution.cpu_window_s >= LEAST_SECONDS
    assert is_long or not min_window_s
    assert (attribution.cpu_cores is not None) == is_long
    assert (attribution.cpu_cores or 0.0) <= usable_cores()
    assert len(attribution.wait_s) == 29  # of the one epoch with spans
