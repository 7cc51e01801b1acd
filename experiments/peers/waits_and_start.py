"""Times that no traversal shows: waits, start, first batch, and the effect of a busy neighbour."""

from functools import partial

from experiments.peers import traversals
from experiments.peers.lines import Line, figure, percent_more, ratio_by_round, times
from experiments.peers.loaders import LOADERS
from experiments.peers.processes import measure_in_rounds, processes
from experiments.peers.steps import StepTimes, calibrate_width, measure_steps
from experiments.peers.workloads import MAPPED, ROWS, outputs_folder, write_file
from fastloop.core import stats

START_SAMPLES = 10**9
NEIGHBOUR_EPOCHS = 10


def waits(num_rounds: int) -> list[Line]:
    """The lines on the time that a loop with a loader takes beyond the same loop over batches in
    memory."""
    lines = []
    cases = {"rows": (ROWS, 1.0, 0.03), "mapped": (write_file(MAPPED), 12.0, 0.06)}
    for name, (workload, step_ms, bar) in cases.items():
        loaders = ("", *LOADERS)
        with processes(loaders) as call:
            width = call[""](calibrate_width, workload, step_ms)
            calls = {
                loader: partial(call[loader], measure_steps, loader, workload, width)
                for loader in loaders
            }
            times_of = measure_in_rounds(num_rounds, calls)
        lines += _waits_of(name, times_of, bar)
    return lines


def _waits_of(name: str, times_of: dict[str, list[StepTimes]], bar: float) -> list[Line]:
    whole = {loader: [step.whole for step in steps] for loader, steps in times_of.items()}
    resident_ms = stats.median(whole[""])
    waiting = {
        loader: [100 * step.waiting / resident_ms for step in times_of[loader]]
        for loader in LOADERS
    }
    ours, others = (stats.median(waiting[loader]) for loader in LOADERS)
    slowdown = ratio_by_round(whole["FastLoader"], whole[""])
    most, share = f"at most {100 * bar:g} %", 100 * ours / others
    lines = [
        Line(f"{name}: step on resident batches", figure(whole[""], "ms")),
        Line(
            f"{name}: FastLoader, in next()",
            figure(waiting["FastLoader"], "% of the step"),
            most,
            ours <= 100 * bar,
        ),
        Line(f"{name}: DataLoader, in next()", figure(waiting["DataLoader"], "% of the step")),
        Line(
            f"{name}: FastLoader's wait relative to DataLoader's",
            f"{share:.2g} %",
            "at most 10 %",
            share <= 10,
        ),
        Line(
            f"{name}: FastLoader, extra time over resident batches",
            percent_more(slowdown),
            most,
            slowdown.estimate - 1 <= bar,
        ),
    ]
    more = percent_more(ratio_by_round(whole["DataLoader"], whole[""]))
    label = f"{name}: DataLoader, extra time over resident batches"
    return [*lines, Line(label, more)]


def start(num_rounds: int) -> list[Line]:
    """The lines on the start, from a fresh process in each round."""
    label = f"{START_SAMPLES:,} samples, shuffle=Blocks: to the first batch"
    path = outputs_folder() / "peers-start.bin"
    with path.open("wb") as file:
        # The file is sparse: nothing of it is on the disk.
        file.truncate(8 * START_SAMPLES)
    starts = []
    try:
        for _ in range(num_rounds):
            with processes([""]) as call:
                starts.append(call[""](traversals.measure_start, START_SAMPLES, str(path)))
    finally:
        path.unlink()
    seconds, mib = zip(*starts, strict=True)
    return [
        Line(label, figure(seconds, "s"), "under 1 s", stats.median(seconds) < 1),
        Line("memory for it", figure(mib, "MiB"), "100 MB", stats.median(mib) * 1.048576 <= 100),
    ]


def neighbour(num_rounds: int) -> list[Line]:
    """The lines on traversals alone, and beside a process that keeps a core busy."""
    cases = [(loader, busy) for loader in LOADERS for busy in (False, True)]
    with processes(list(LOADERS)) as call:
        calls = {
            (loader, busy): partial(
                call[loader], traversals.traversal_s, loader, ROWS, NEIGHBOUR_EPOCHS, busy
            )
            for loader, busy in cases
        }
        seconds = measure_in_rounds(num_rounds, calls)
    slowdowns = {
        loader: ratio_by_round(seconds[loader, True], seconds[loader, False]) for loader in LOADERS
    }
    samples = NEIGHBOUR_EPOCHS * ROWS.count
    rates = {case: [samples / value for value in values] for case, values in seconds.items()}
    words = {False: "alone", True: "next to a busy process"}
    lines = [
        Line(f"{loader}, {words[busy]}", figure(rates[loader, busy], "samples/s"))
        for loader, busy in cases
    ]
    lines += [Line(f"{name}'s slowdown", times(ratio)) for name, ratio in slowdowns.items()]
    ours, theirs = (ratio.estimate for ratio in slowdowns.values())
    label = "FastLoader's slowdown over DataLoader's"
    bar = Line(label, f"x {ours / theirs:.2f}", "at most 1.25", ours / theirs <= 1.25)
    return [*lines, bar]


EDGE_BARS_MS = {"rows": (0.5, 0.3)}
"""The bars, in milliseconds, for the first batch and for the gap between epochs."""


def first(num_rounds: int) -> list[Line]:
    """The lines on times to the first batch and between epochs. For large batches the bar is one
    batch's time."""
    lines = []
    for name, workload in {"rows": ROWS, "mapped": write_file(MAPPED)}.items():
        with processes([name]) as call:
            call[name](traversals.measure_edges, workload)
            edges = [call[name](traversals.measure_edges, workload) for _ in range(num_rounds)]
        batch_ms = [edge.batch for edge in edges]
        bars_ms = EDGE_BARS_MS.get(name, (stats.median(batch_ms),) * 2)
        edges_ms = {
            "first batch after iter()": [edge.first for edge in edges],
            "gap between epochs": [edge.gap for edge in edges],
        }
        lines += [Line(f"{name}: between batches", figure(batch_ms, "ms"))]
        lines += [
            Line(
                f"{name}: {edge}",
                figure(ms, "ms"),
                f"at most {bar_ms:.3g} ms",
                stats.median(ms) <= bar_ms,
            )
            for (edge, ms), bar_ms in zip(edges_ms.items(), bars_ms, strict=True)
        ]
    return lines
