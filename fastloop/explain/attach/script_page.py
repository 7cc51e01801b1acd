"""The HTML page about a script, without scripts or requests of its own."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from fastloop.core.machine_load import describe_load
from fastloop.explain.attach.findings import (
    LoopFindings,
    ScriptFindings,
    describe_causes,
    describe_unseen,
    part_rows,
    what_if_rows,
)
from fastloop.explain.attach.loop_verdict import RankComparison, rank_rows

HINT = (
    "One pass: a box tells its stage, its time and its batch under the pointer. On a narrow screen "
    "the picture scrolls to the right."
)
STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1f1f1d; --soft: #5c5c57; --rule: #c9c9c4; }
@media screen and (prefers-color-scheme: dark) {
  :root { --paper: #17181a; --ink: #e9e8e4; --soft: #a5a49e; --rule: #45464a; } }
body { margin: 0 auto; padding: 2.5rem 1.25rem 4rem; max-width: 84rem; background: var(--paper);
  color: var(--ink); font: 16px/1.55 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.6rem; line-height: 1.2; }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .5rem; }
p { max-width: 44rem; margin: .6rem 0; }
.note { color: var(--soft); font-size: .875rem; }
h3 { font-size: 1rem; margin: 1rem 0 0; }
/* shadows at the edges behind which a picture or table continues: paper scrolls over them */
.scroll { overflow-x: auto; background: linear-gradient(to right, var(--paper) 1.5rem, transparent)
  left / 2.5rem 100% local, linear-gradient(to left, var(--paper) 1.5rem, transparent)
  right / 2.5rem 100% local, linear-gradient(to right, #8888, transparent)
  left / 1.1rem 100% scroll, linear-gradient(to left, #8888, transparent)
  right / 1.1rem 100% scroll; background-repeat: no-repeat; }
.picture svg { display: block; width: 100%; height: auto; min-width: 52rem; }
.picture .paper { fill-opacity: 0; }
.beside { display: flex; flex-wrap: wrap; gap: 0 3rem; align-items: flex-start; }
.beside > * { max-width: 100%; }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums;
  margin: 1rem 0; }
th, td { padding: .3rem 1.4rem .3rem 0; text-align: left; border-bottom: 1px solid var(--rule); }
th { color: var(--soft); font-weight: 400; }
"""


def render_page(findings: ScriptFindings, pictures: Sequence[str]) -> str:
    """The page: for each loop the verdict, the parts of its time, what-ifs, and its picture.

    pictures: an <svg> element for each loop.
    """
    title = escape(findings.command)
    load = describe_load(findings.machine_load, "run", "runs")
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>",
            f"<h1>{title}</h1>",
            *(f"<p>{escape(line)}</p>" for line in load),
            *map(_section, findings.loops, pictures),
            *(f"<p>{escape(line)}</p>" for line in describe_unseen(findings)),
            '<p class="note">Made by fastloop attach. Brackets: 95 % intervals over epochs, or '
            "over blocks of batches. attach.json has all values, timeline.json the lanes for "
            "ui.perfetto.dev.</p>",
            "</body>\n</html>\n",
        ]
    )


def _section(loop: LoopFindings, picture: str) -> str:
    sentences = escape(". ".join(loop.verdict.sentences))
    facts = ", ".join(f"{name}={value}" for name, value in loop.facts.items() if value is not None)
    return "\n".join(
        [
            f"<h2>{escape(loop.name)}</h2>",
            f"<p><strong>{escape(str(loop.verdict.word))}.</strong> {sentences}.</p>",
            *(f"<p>{escape(line)}</p>" for line in describe_causes(loop)),
            f'<div class="scroll picture" tabindex="0" role="region">\n{picture}</div>',
            f'<p class="note">{HINT}</p>',
            '<div class="beside">',
            _table(part_rows(loop)),
            _what_to_change(loop),
            "</div>",
            _ranks(loop.ranks) if loop.ranks else "",
            f'<p class="note">{loop.passes:,} passes, {loop.batches:,} batches; the lane main '
            f"accounts for {100 * loop.coverage:.1f} % of their time; {escape(facts)}</p>",
        ]
    )


def _what_to_change(loop: LoopFindings) -> str:
    return (
        f"<div><h3>What to change</h3>{_table(what_if_rows(loop))}</div>" if loop.what_ifs else ""
    )


def _ranks(comparison: RankComparison) -> str:
    verdicts = [". ".join(each.verdict.sentences) for each in comparison.ranks]
    items = "\n".join(f"<li>{escape(verdict)}.</li>" for verdict in verdicts)
    return (
        f"<p><strong>{escape(comparison.sentence)}.</strong></p>\n"
        f"{_table(rank_rows(comparison))}\n<ul>\n{items}\n</ul>"
    )


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    head, *body = rows
    cells = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    lines = ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in body]
    text = "\n".join(f"<tr>{line}</tr>" for line in (cells, *lines))
    return f'<div class="scroll"><table>\n{text}\n</table></div>'
