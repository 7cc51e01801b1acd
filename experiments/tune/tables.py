"""Replay the tuners on the recordings, and write the tables into README.md.

python -m experiments.tune.tables [seeds]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from experiments.explain.record import Record, read_records
from experiments.explain.tables import markdown
from experiments.tune.grid import PEAKS_FILE, PILOTS_FILE, ROUNDS_FILE
from experiments.tune.live import LIVE_FILE, live_table
from experiments.tune.recordings import Recording, build_recordings
from experiments.tune.replay import SHARES, Scores, replay_all
from experiments.tune.tpe import has_optuna
from experiments.tune.workloads import YOURS
from fastloop.core.atomic_files import write_text
from fastloop.core.machine import describe_machine

SEEDS = 1000
README = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- tables of experiments.tune.tables -->", "<!-- end of tables -->"
Row = tuple[str, ...]


def main(seeds: int) -> None:
    """Write the tables into README.md. Exits with a message if nothing is recorded."""
    recordings = build_recordings(read_records(ROUNDS_FILE))
    if not recordings:
        sys.exit(f"{ROUNDS_FILE}: no round is recorded; python -m experiments.tune.record does")
    pilots, peaks = read_records(PILOTS_FILE), read_records(PEAKS_FILE)
    predicted = {each["workload"]: each["predicted_s"] for each in pilots}
    if not has_optuna():
        print("Optuna's TPE is left out: pip install optuna")
    scores, alike = zip(*replay_all(recordings, predicted, seeds), strict=True)
    sections = {
        f"What was recorded, {describe_recording(recordings)}": workload_table(recordings),
        f"What each tuner reaches, means of {len(recordings)} workloads": tuner_table(scores),
        "As good as best, by workload": by_workload(recordings, scores),
        "Where nothing differs": alike_table(alike),
        "Peaks of memory": memory_table(peaks, pilots),
        "`fastloop tune` live, and fresh trials of what it recommends": live_table(
            read_records(LIVE_FILE)
        ),
    }
    text = "\n\n".join(
        f"**{title}.**\n\n{markdown(rows) if rows[1:] else 'Not recorded yet.'}"
        for title, rows in sections.items()
    )
    write_text(README, fill(README.read_text(), text))
    print(f"{README}: tables of {len(recordings)} workloads")


def fill(page: str, text: str) -> str:
    """The page with this text between its two marks."""
    before, mark, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert mark and end, "the marks of the tables are missing"  # noqa: PT018 - one fault
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"


def describe_recording(recordings: Sequence[Recording]) -> str:
    """A line on rounds, configurations and the machine."""
    machine = describe_machine()
    rounds = sorted({each.rounds for each in recordings})
    count = sum(len(each.names) for each in recordings)
    shown = "-".join(map(str, {rounds[0]: 0, rounds[-1]: 0}))
    cores = machine["cores_usable"]
    return f"{count} configurations in {shown} rounds, {machine['cpu']}, {cores} cores"


def workload_table(recordings: Sequence[Recording]) -> list[Row]:
    """A row for each workload: the gains that are possible."""
    heads = ("workload", "configurations", "rounds", "yours, ms", "best, ms", "gain")
    rows: list[Row] = [(*heads, "as good as best", "best")]
    for each in recordings:
        yours, best = each.medians[each.names.index(YOURS)], each.medians.min()
        good = str(len(each.good))
        figures = f"{1e3 * yours:.1f}", f"{1e3 * best:.1f}", f"{yours / best:.2f}", good
        sizes = str(len(each.names)), str(each.rounds)
        rows.append((each.workload, *sizes, *figures, each.names[int(each.medians.argmin())]))
    return rows


def tuner_table(scores: Sequence[Scores]) -> list[Row]:
    """A row for each tuner, with means over the workloads, but the median of the regret."""
    heads = ("tuner", "as good as best", "slower than yours", "median regret", "trials", "time")
    rows: list[Row] = [(*heads, "rounds drawn", "seeds a workload")]
    for name in scores[0]:
        each = [one[name] for one in scores if name in one]
        fields = ("good", "slower", "trials", "cost")
        good, slower, trials, cost = (np.mean([getattr(one, f) for one in each]) for f in fields)
        values = good, slower, np.median([one.regret for one in each]), trials, cost
        shares = (f"{100 * value:.1f} %" for value in values)
        rounds = np.mean([one.rounds for one in each])
        rows.append((name, *shares, f"{rounds:.1f}", f"{each[0].seeds:,}"))
    return rows


def by_workload(recordings: Sequence[Recording], scores: Sequence[Scores]) -> list[Row]:
    """A row for each workload: the shares of seeds that end with a configuration as good as the
    best."""
    names = [name for name in scores[0] if f"{100 * SHARES[0]:.0f} %" in name]
    names += ["textbook", "exhaustive grid"]
    rows: list[Row] = [("workload", *names)]
    for recording, score_of in zip(recordings, scores, strict=True):
        cells = [f"{100 * score_of[name].good:.0f} %" if name in score_of else "" for name in names]
        rows.append((recording.workload, *cells))
    return rows


def alike_table(scores: Sequence[Scores]) -> list[Row]:
    """A row for each tuner: how often it claims a gain that does not exist."""
    heads = ("tuner", "a gain is claimed", "most, of a workload", "seeds a workload")
    rows: list[Row] = [heads]
    for name in scores[0]:
        claims = [each[name].claims for each in scores]
        shares = f"{100 * np.mean(claims):.1f} %", f"{100 * max(claims):.1f} %"
        rows.append((name, *shares, f"{scores[0][name].seeds:,}"))
    return rows


def memory_table(observed: Sequence[Record], pilots: Sequence[Record]) -> list[Row]:
    """Differences between forecast and observed memory peaks."""
    rows: list[Row] = [("workload", "forecast / peak", "within 10 %", "peak above forecast, most")]
    peaks = {each["workload"]: each["peak_pss_mib"] for each in observed}
    everything: list[float] = []
    for each in pilots:
        pairs = [
            (each["forecast_mib"].get(k), v) for k, v in peaks.get(each["workload"], {}).items()
        ]
        ratios = [forecast / peak for forecast, peak in pairs if forecast and peak]
        everything += ratios
        rows.append((each["workload"], *_ratio_cells(ratios)))
    return [*rows, ("all", *_ratio_cells(everything))]


def _ratio_cells(ratios: Sequence[float]) -> tuple[str, str, str]:
    if not ratios:
        return "", "", ""
    low, middle, high = np.percentile(ratios, (5, 50, 95))
    near = np.mean([0.9 <= each <= 1.1 for each in ratios])
    above = max(0.0, 1 / min(ratios) - 1)
    return f"{middle:.2f} [{low:.2f}, {high:.2f}]", f"{100 * near:.0f} %", f"{100 * above:.0f} %"


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else SEEDS)
