"""The findings of `fastloop.explain(loader, step)`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from fastloop.core.explanation import Ladder, Verdict
from fastloop.core.number_text import significant
from fastloop.explain.explanation import ladder_lines, wrap

SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class LoopExplanation:
    """The answer for one loop; `str` of it is a text for people."""

    verdict: Verdict
    ladder: Ladder
    device: str
    window_batches: int
    """Batches of an epoch that each pass ran."""
    loader_batches_per_s: float
    """Of the loader alone, without steps."""
    notes: tuple[str, ...]
    """What could not be told."""

    def to_json(self) -> str:
        """The findings as JSON, with the names of explain.json."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=1) + "\n"

    def __str__(self) -> str:
        ladder = self.ladder
        head = f"device {self.device}: {ladder.batches:,} batches an epoch, {ladder.rounds} rounds"
        rate = significant(self.loader_batches_per_s)
        text = ". ".join(
            [*self.verdict.sentences, f"Without steps the loader gives {rate} batches/s"]
        )
        lines = [head, "", f"verdict: {self.verdict.word}", *wrap([f"{text}."]), ""]
        return "\n".join(
            [*lines, *ladder_lines(ladder), *wrap(f"note: {each}" for each in self.notes)]
        )
