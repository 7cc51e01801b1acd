"""Tables of verdicts: by slow stage, by definition of a right verdict, and by contended
resource."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from experiments.explain.findings import UNKNOWN, Finding
from experiments.explain.markdown import Rows, percent, show_count
from experiments.explain.pipelines import Pipeline

HEALTHY = "healthy"
RIGHT_COLUMNS = ("slow ones", "named", "unattributed", "wrong", "healthy, accused")
NEEDS = (
    "compute without the interpreter's lock, or hand over megabytes",
    "compute with the lock",
    "only sleep",
    "want more cores than there are",
)


def verdict_table(findings: Sequence[Finding]) -> Rows:
    """A row for each slow stage, and one for all of them."""
    rows = [("slow stage", "pipelines", "named", "unattributed", "another one named")]
    names = sorted({each.group for each in findings} - {HEALTHY})
    for name in (*names, HEALTHY):
        rows.append(_verdict_row(name, [each for each in findings if each.group == name]))
    slow = [each for each in findings if each.group != HEALTHY]
    return [*rows, _verdict_row("all but the healthy ones", slow)]


def _verdict_row(name: str, group: Sequence[Finding]) -> tuple[str, ...]:
    named = sum(each.said == each.word for each in group)
    unknown = sum(each.said == UNKNOWN for each in group)
    others = len(group) - named - unknown
    return (
        name,
        str(len(group)),
        *(show_count(each, len(group)) for each in (named, unknown, others)),
    )


def definition_table(findings: Sequence[Finding]) -> Rows:
    """The same verdicts, judged by stricter and laxer definitions of a right one."""
    rights: dict[str, Callable[[Finding], set[str]]] = {
        "the greatest part of the wait": lambda each: {each.word},
        "either, where the bare loop can't tell": lambda each: each.words,
        "the slow stage, if worth 10 % by itself": lambda each: {each.injected_word},
    }
    rows = [("right is", *RIGHT_COLUMNS)]
    return [*rows, *(_right_row(name, findings, right) for name, right in rights.items())]


def need_table(findings: Sequence[Finding]) -> Rows:
    """The same verdicts, by the resource that the pipelines compete for."""
    rows = [("pipelines that", *RIGHT_COLUMNS)]
    for name in NEEDS:
        group = [each for each in findings if need_of(each.pipeline) == name]
        rows.append(_right_row(name, group, lambda each: {each.word}))
    return rows


def need_of(pipeline: Pipeline) -> str:
    """The pipeline's entry in NEEDS."""
    if pipeline.is_contended:
        return NEEDS[3]
    if pipeline.is_light:
        return NEEDS[2]
    return NEEDS["with_lock" in (pipeline.kind, pipeline.step_kind)]


def _right_row(
    name: str, findings: Sequence[Finding], right: Callable[[Finding], set[str]]
) -> tuple[str, ...]:
    slow = [each for each in findings if right(each) != {"step"}]
    healthy = [each for each in findings if right(each) == {"step"}]
    named = sum(each.said in right(each) for each in slow)
    unknown = sum(each.said == UNKNOWN for each in slow)
    accused = sum(each.said not in ("step", UNKNOWN) for each in healthy)
    counts = (named, unknown, len(slow) - named - unknown)
    shares = [show_count(each, len(slow)) for each in counts]
    return name, str(len(slow)), *shares, f"{accused} of {len(healthy)}"


def wrong_table(findings: Sequence[Finding]) -> Rows:
    """A row for each pipeline with a wrong verdict."""
    rows = [("pipeline", "right", "said", "in next()", "saved by switching off")]
    for each in findings:
        if each.said != each.word:
            shares = (percent(each.share_in_next), percent(each.plain_share))
            rows.append((each.record["name"], each.word, each.said, *shares))
    return rows
