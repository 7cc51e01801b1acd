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
from fastloop.explain.job_findings import ladder_lines, ladder_table

if TYPE_CHECKING:
    from pandas import DataFrame

SCHEMA = 1


@dataclass(frozen=True, kw_only=True, repr=False)
class LoopExplanation:
    """The answer of `fastloop.explain` for one loop.

    Printed it is a text, and as the last line of a notebook's cell a table.
    """

    verdict: Verdict
    """`word` names the cause, as "step" or "decode"; `sentences` say it in words."""
    ladder: Ladder
    """The parts of an epoch, with milliseconds a batch and shares of the epoch."""
    device: str
    window_batches: int
    """Number of batches of an epoch in each pass."""
    loader_batches_per_s: float
    """Rate of the loader alone, without steps."""
    notes: tuple[str, ...]
    """Sentences on parts of this loader that the ladder can't tell apart."""
    machine_load: LoadSummary | None = None
    """The load by other programs during the passes."""

    def to_json(self) -> str:
        """The findings as JSON, with the names of explain.json."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=1) + "\n"

    def to_frame(self) -> DataFrame:
        """A pandas DataFrame of the parts of an epoch, with the index `part`.

        Its columns are hidden_ms and exposed_ms (milliseconds a batch), and share, share_low and
        share_high (of the epoch, with its 95 % interval).
        """
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
