"""The findings of `fastloop.explain(loader, step)`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from fastloop.core.explanation import Ladder, Verdict
from fastloop.core.machine_load import LoadSummary, describe_load
from fastloop.core.notebook import notebook_html
from fastloop.core.number_text import significant
from fastloop.core.text_lines import wrap
from fastloop.explain.explanation import ladder_lines, ladder_table

if TYPE_CHECKING:
    from pandas import DataFrame

SCHEMA = 1


@dataclass(frozen=True, kw_only=True, repr=False)
class LoopExplanation:
    """The answer for one loop; printed, or as the last line of a notebook's cell, a text."""

    verdict: Verdict
    ladder: Ladder
    device: str
    window_batches: int
    """Batches of an epoch that each pass ran."""
    loader_batches_per_s: float
    """Of the loader alone, without steps."""
    notes: tuple[str, ...]
    """What could not be told."""
    machine_load: LoadSummary | None = None
    """What other programs used of the machine meanwhile."""

    def to_json(self) -> str:
        """The findings as JSON, with the names of explain.json."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=1) + "\n"

    def to_frame(self) -> DataFrame:
        """The parts of an epoch, one a row: milliseconds a batch, and shares of the epoch."""
        import pandas as pd

        rows = [
            {
                "part": str(row.rung),
                "hidden_ms": row.hidden_ms,
                "exposed_ms": row.exposed_ms.value,
                "share": row.share.value,
                "share_low": row.share.low,
                "share_high": row.share.high,
            }
            for row in self.ladder.rows
        ]
        return pd.DataFrame(rows).set_index("part")

    def _repr_html_(self) -> str:
        answer = ". ".join(self.verdict.sentences) + "."
        first = describe_load(self.machine_load, "pass", "passes")
        return notebook_html(answer, ladder_table(self.ladder), self.notes, first)

    def __repr__(self) -> str:
        ladder = self.ladder
        head = f"device {self.device}: {ladder.batches:,} batches an epoch, {ladder.rounds} rounds"
        rate = significant(self.loader_batches_per_s)
        text = ". ".join(
            [*self.verdict.sentences, f"Without steps the loader gives {rate} batches/s"]
        )
        load = describe_load(self.machine_load, "pass", "passes")
        lines = [*wrap(load), head, "", f"verdict: {self.verdict.word}", *wrap([f"{text}."]), ""]
        return "\n".join(
            [*lines, *ladder_lines(ladder), *wrap(f"note: {each}" for each in self.notes)]
        )
