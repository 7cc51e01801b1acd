"""The window, the spans and the figures, with an injected clock and known answers."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from fastloop import spans, stats, window
from fastloop.result import Attribution, Measured, Result, Trial, measured, metrics
from fastloop.spans import Spans, Steps

CPU = torch.device("cpu")


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is told to go on; it counts how often it is read."""

    class Clock:
        now, reads = 0, 0

        def __call__(self) -> int:
            self.reads += 1
            return self.now

    made = Clock()
    monkeypatch.setattr(window, "now_ns", made)
    monkeypatch.setattr(spans, "now_ns", made)
    return made


def test_the_window_reads_the_clock_twice_around_whole_epochs(clock):
    seen = []

    def epochs(epoch):
        clock.now += 100  # starting an epoch costs time inside the window
        for number in range(3):
            clock.now += 10
            yield (epoch, number)

    clock.now = 5
    measured = window.timed(epochs, seen.append, 2, CPU)
    assert seen == list(itertools.product(range(2), range(3)))
    assert (measured.start_ns, measured.stop_ns) == (5, 5 + 2 * 100 + 6 * 10)
    assert clock.reads == 2


def test_each_wait_is_a_span_and_what_the_loop_does_is_not(clock):
    def batches():
        for wait_ns in (100, 20, 30):
            clock.now += wait_ns
            yield wait_ns

    found = Spans()
    for _ in found.each("wait", batches()):
        clock.now += 1000
    assert [round(seconds * 1e9) for seconds in found.seconds("wait")] == [100, 20, 30]


def test_the_instrumented_epoch_drains_and_keeps_the_consumers_own_spans(clock):
    found = Spans()

    def place(batch):
        clock.now += 7
        return batch

    taken = window.instrumented(
        lambda epoch: iter([epoch] * 4), found.timed("place", place), found, CPU
    )
    assert taken.stop_ns - taken.start_ns == 28
    assert [round(seconds * 1e9) for seconds in found.seconds("place")] == [7] * 4
    assert len(found.seconds("wait")) == 4


def test_a_step_begins_when_its_batch_is_there_and_ends_with_it(clock):
    steps = Steps(CPU)

    def place(batch):
        clock.now += 7_000_000
        return batch

    placed = steps.behind(place)

    def consume(batch):
        placed(batch)
        clock.now += 500_000_000

    taken = window.instrumented(lambda epoch: [epoch] * 4, steps.around(consume), Spans(), CPU)
    assert taken.seconds == pytest.approx(4 * 0.507)
    assert steps.seconds() == pytest.approx(4 * 0.5)


@pytest.mark.parametrize(("idle_s", "stalled"), [(None, 0.75), (0.5, 0.25), (0.0, 0.0)])
def test_a_step_stalls_while_the_loop_waits_and_places_or_as_the_device_tells(idle_s, stalled):
    seen = Attribution(
        seconds=2.0, first_batch_s=1.0, wait_s=[0.5, 0.25], place_s=[0.75], idle_s=idle_s, cpu_s=1.0
    )
    assert seen.stall_fraction == stalled
    known = result_of([1.0], samples=10, limit=100.0)
    trial = replace(known.trials[0], benchmarks={"training": measured(known, "traversal")[0]})
    figures = metrics(replace(known, trials=[trial], attribution={"training": seen}))
    assert figures["training/stall_fraction"] == stalled


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is here")
def test_on_cuda_a_blocking_copy_that_waits_for_the_step_before_is_no_stall():
    device, found = torch.device("cuda", 0), Spans()
    steps = Steps(device)
    placed = steps.behind(found.timed("place", lambda batch: batch.to(device)))

    def consume(batch):
        placed(batch)
        torch.cuda._sleep(20_000_000)  # clock cycles, about 10 ms, which the host does not wait for

    batches = [torch.zeros(64) for _ in range(10)]
    for _ in range(2):  # the first starts the device
        steps.begun.clear()
        steps.ended.clear()
        taken = window.instrumented(lambda epoch: batches, steps.around(consume), found, device)
    assert sum(found.seconds("place")[10:]) > 0.5 * taken.seconds
    assert steps.seconds() > 0.8 * taken.seconds


def test_figures_of_known_values():
    assert stats.std([1.0]) is None
    assert stats.std([2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]) == pytest.approx((32 / 7) ** 0.5)
    assert stats.percentile([1, 2, 3, 4, 5], 95) == pytest.approx(4.8)


def result_of(seconds: list[float], samples: int, limit: float) -> Result:
    trials = [
        Trial(
            number=number,
            seed=0,
            torch_threads=1,
            multiprocessing_context=None,
            load_average=None,
            benchmarks={
                "traversal": Measured(
                    start_ns=0,
                    stop_ns=int(one * 1e9),
                    epochs=5,
                    samples=samples,
                    limit_samples_per_s=limit,
                )
            },
        )
        for number, one in enumerate(seconds)
    ]
    return Result(
        name="a b", loader="a", dataset="b", params={}, tags={}, trials=trials, sample_nbytes=8
    )


def test_throughput_is_samples_of_a_trial_over_its_seconds_and_the_median_over_trials():
    figures = metrics(result_of([1.0, 2.0, 4.0], samples=1000, limit=2000.0))
    assert figures["traversal/samples_per_s"] == 500
    assert figures["traversal/bytes_per_s"] == 4000
    assert figures["traversal/limit_fraction"] == 0.25
    assert figures["traversal/seconds_mean"] == pytest.approx(7 / 3)
    assert figures["traversal/seconds_median"] == 2


def test_one_trial_has_no_deviation():
    assert "traversal/seconds_std" not in metrics(result_of([1.0], samples=1, limit=1.0))


def test_a_batch_in_a_mapped_file_may_be_unread_and_one_in_memory_is_not(tmp_path):
    path = tmp_path / "rows"
    path.write_bytes(bytes(1 << 16))
    mapped = torch.from_file(str(path), size=1 << 16, dtype=torch.uint8)
    assert window.may_be_unread((mapped[:64], torch.zeros(3)))
    assert not window.may_be_unread((mapped[:64].clone(), torch.zeros(3)))
    assert not window.may_be_unread((torch.zeros(1 << 20).share_memory_(),))
