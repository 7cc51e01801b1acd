"""Tables and a picture of the records that `run` has written: see README.md.

python -m experiments.explain.tables [folder]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import numpy as np

from experiments.explain.findings import THRESHOLD, UNKNOWN, Finding, Prediction
from experiments.explain.markdown import Rows, markdown, percent, show_count
from experiments.explain.overhead import FILE as OVERHEAD
from experiments.explain.overhead import overhead_table
from experiments.explain.real import FILE as REAL
from experiments.explain.real import real_table
from experiments.explain.record import read_records
from experiments.explain.run import FOLDER
from experiments.explain.traceml import FILE as TRACEML
from experiments.explain.verdict_tables import (
    definition_table,
    need_table,
    verdict_table,
    wrong_table,
)

POINTS = 0.05
"""An injected delay counts as recovered if its share is missed by at most this."""


def main(folder: Path) -> None:
    records = [each for path in folder.glob("pipelines-*.jsonl") for each in read_records(path)]
    failures = [each for each in records if "failure" in each]
    findings = [Finding(record=each) for each in records if "failure" not in each]
    findings.sort(key=lambda each: each.record["number"])
    traceml = {each["name"]: each["status"] for each in read_records(folder / TRACEML)}
    sections = {
        "Verdicts": verdict_table(findings),
        "What is right, by three definitions": definition_table(findings),
        "By what they compete for": need_table(findings),
        "Rules that go by thresholds": rule_table(findings, traceml),
        "Injected delays, recovered": recovery_table(findings),
        "What-ifs, by the time of an epoch": what_if_table(findings),
        "Cost": cost_table(findings),
        "Not right": wrong_table(findings),
        "Real data": real_table(read_records(folder / REAL)),
        "What attaching costs": overhead_table(read_records(folder / OVERHEAD)),
    }
    for title, rows in sections.items():
        print(f"{title}\n\n{markdown(rows)}\n")
    print(f"failed: {[(each['name'], each['failure']) for each in failures]}")
    draw(findings, folder / "recovered.svg")


def rule_table(findings: Sequence[Finding], traceml: dict[str, str]) -> Rows:
    """How often each rule finds a wait, and how often it finds one that is not there. Nothing else
    can be compared, because most rules name no stage."""
    rules: dict[str, Callable[[Finding], bool | None]] = {
        "fastloop explain": lambda each: None if each.said == UNKNOWN else each.said != "step",
        f"{percent(THRESHOLD)} in next()": lambda each: each.share_in_next >= THRESHOLD,
    }
    best = _best_threshold(findings)
    rules[f"{percent(best)} in next(), the best in hindsight"] = lambda each: (
        each.share_in_next >= best
    )
    if traceml:
        rules["TraceML"] = lambda each: _traceml_says(traceml.get(each.record["name"]))
    rows = [("rule", "waits found", "false alarms", "nothing said", "stage named")]
    for name, rule in rules.items():
        judged = findings
        # TraceML may have judged only some of the pipelines.
        if name == "TraceML":
            judged = [each for each in findings if each.record["name"] in traceml]
        label = name if judged is findings else f"{name}, on {len(judged)} of them"
        rows.append((label, *_rule_row(judged, rule), "yes" if "explain" in name else "no"))
    return rows


def _rule_row(
    findings: Sequence[Finding], rule: Callable[[Finding], bool | None]
) -> tuple[str, ...]:
    waits = [each for each in findings if each.word != "step"]
    others = [each for each in findings if each.word == "step"]
    found = sum(rule(each) is True for each in waits)
    false = sum(rule(each) is True for each in others)
    nothing = sum(rule(each) is None for each in findings)
    return (
        show_count(found, len(waits)),
        show_count(false, len(others)),
        show_count(nothing, len(findings)),
    )


def _traceml_says(status: str | None) -> bool | None:
    return None if status is None else status == "INPUT_BOUND"


def _best_threshold(findings: Sequence[Finding]) -> float:
    """The threshold with the fewest errors on the same pipelines."""
    shares = sorted({each.share_in_next for each in findings})
    return min(
        shares,
        key=lambda share: sum((f.share_in_next >= share) != (f.word != "step") for f in findings),
    )


def recovery_table(findings: Sequence[Finding]) -> Rows:
    """Differences between the slow stage's exposed share and the share that switching it off
    saves."""
    delayed = [each for each in findings if each.pipeline.ratio and each.pipeline.stage != "step"]
    rows = [("pipelines", "number", "median, points", "p90, points", "within 5 points")]
    for name, is_contended in (("cores to spare", False), ("cores are short", True)):
        group = [each for each in delayed if each.pipeline.is_contended == is_contended]
        misses = [abs(each.recovered_share - each.plain_share) for each in group]
        if misses:
            close = sum(miss <= POINTS for miss in misses)
            figures = (f"{100 * median(misses):.1f}", f"{100 * np.percentile(misses, 90):.1f}")
            rows.append((name, str(len(misses)), *figures, show_count(close, len(misses))))
    return rows


def what_if_table(findings: Sequence[Finding]) -> Rows:
    """Differences between predicted and realised times of an epoch."""
    predictions = [each for finding in findings for each in finding.predictions]
    easy = [each for each in predictions if not each.is_contended]
    hard = [each for each in predictions if each.is_contended]
    changes = sorted({each.change for each in predictions})
    groups = {name: [each for each in easy if each.change == name] for name in changes}
    groups |= {"all with cores to spare": easy, "all where cores or the lock are short": hard}
    rows = [("change", "number", "median miss", "p90", "inside the 90 % interval")]
    rows += [_what_if_row(name, group) for name, group in groups.items() if group]
    return rows


def _what_if_row(name: str, group: Sequence[Prediction]) -> tuple[str, ...]:
    misses = [each.miss for each in group]
    covered = [each.is_covered for each in group if each.is_covered is not None]
    inside = show_count(sum(covered), len(covered)) if covered else "-"
    p90 = float(np.percentile(misses, 90))
    return name, str(len(group)), percent(median(misses), 1), percent(p90, 1), inside


def cost_table(findings: Sequence[Finding]) -> Rows:
    """Seconds until the verdict."""
    seconds = [each.record["verdict_s"] for each in findings]
    figures = (median(seconds), np.percentile(seconds, 90), max(seconds))
    return [("median", "p90", "longest"), tuple(f"{each:.1f} s" for each in figures)]


def draw(findings: Sequence[Finding], path: Path) -> None:
    """Draw the slow stage's share of the epoch by the ladder against its true share."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 6))
    delayed = [each for each in findings if each.pipeline.ratio and each.pipeline.stage != "step"]
    for stage in sorted({each.pipeline.stage for each in delayed}):
        group = [each for each in delayed if each.pipeline.stage == stage]
        shares = [(100 * each.plain_share, 100 * each.recovered_share) for each in group]
        axes.plot(*zip(*shares, strict=True), "o", alpha=0.7, label=stage)
    axes.plot([0, 80], [0, 80], color="grey", linewidth=1)
    axes.set_xlabel("saved by switching the delay off, % of the epoch")
    axes.set_ylabel("exposed by the ladder, % of the epoch")
    axes.legend()
    figure.savefig(path)
    print(path)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else FOLDER))
