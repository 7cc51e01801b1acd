"""Records of judged pipelines, evaluated: the right verdict, the delay that the ladder recovered,
and the predicted gains."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any

from experiments.explain.pipelines import WORTH, Pipeline
from experiments.explain.record import Record

UNKNOWN = "unattributed"
THRESHOLD = 0.10
"""Share of the time in next() at which TraceML, too, names the input as a cause."""
NEAR, NEAR_WORTH = 0.05, 0.02
"""The bare loop can't tell which of two parts is greater if they differ by less than NEAR of the
epoch, nor whether a wait is worth naming if it is within NEAR_WORTH of the threshold."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The time of an epoch after a change, relative to the time before it."""

    change: str
    predicted: float
    realised: float
    bounds: tuple[float, float] | None
    """The 90 % interval of the prediction; None if it has none."""
    is_contended: bool

    @property
    def miss(self) -> float:
        """|predicted / realised - 1|."""
        return abs(self.predicted / self.realised - 1)

    @property
    def is_covered(self) -> bool | None:
        """True if the interval contains the realised time; None without an interval."""
        return None if self.bounds is None else self.bounds[0] <= self.realised <= self.bounds[1]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The record of a pipeline, and the figures that follow from it."""

    record: Record

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline that was judged."""
        return Pipeline(**self.record["pipeline"])

    @property
    def said(self) -> str:
        """The verdict of `fastloop explain`."""
        return self.record["explanation"]["verdict"]["word"]

    @property
    def word(self) -> str:
        """The right verdict: the greatest part of the wait, or `step` if the wait is not worth
        naming.

        Without workers it follows from the pipeline's construction. Workers take time themselves,
        which hides a part of the slow stage and may be the greater part, so with workers the right
        verdict is measured by the bare loop.
        """
        parts = self.parts
        return "step" if sum(parts.values()) < WORTH else max(parts, key=lambda each: parts[each])

    @property
    def words(self) -> set[str]:
        """All verdicts that count as right if the bare loop can't tell two of them apart."""
        parts, whole = self.parts, sum(self.parts.values())
        words = {"step"} if whole < WORTH + NEAR_WORTH else set()
        if whole >= WORTH - NEAR_WORTH:
            words |= {each for each in parts if parts[each] >= max(parts.values()) - NEAR}
        return words

    @property
    def injected_word(self) -> str:
        """The slow stage if it is worth naming, even if the workers' hand-off takes more."""
        parts = self.parts
        injected = parts.get(self.pipeline.stage, 0.0) if self.pipeline.ratio else 0.0
        if self.pipeline.stage != "step" and injected >= WORTH:
            return self.pipeline.stage
        return "step" if sum(parts.values()) < WORTH else "hand-off"

    @property
    def parts(self) -> dict[str, float]:
        """Shares of the epoch: of the slow stage, of start-up, and of the hand-off, to which the
        rest of the time in next() is assigned."""
        pipeline = self.pipeline
        is_slow = pipeline.stage != "step" and bool(pipeline.ratio)
        name = "slow" if is_slow or pipeline.stage == "step" else "fast"
        share, rest = 0.0, self._share_in_next(name)
        if is_slow:
            share = self.plain_share if pipeline.workers else pipeline.expected_share()
        parts = {pipeline.stage: share} if is_slow else {}
        if pipeline.workers:
            start = median(self._plain("fast")["start_up_s"]) / median(self._plain(name)["seconds"])
            parts["start-up"] = parts.get("start-up", 0.0) + start
            parts["hand-off"] = parts.get("hand-off", 0.0) + max(0.0, rest - share - start)
        return parts or {"hand-off": rest}

    @property
    def group(self) -> str:
        """The table's row in which the pipeline is counted."""
        if self.word == self.pipeline.stage and self.pipeline.ratio:
            return self.word
        return "healthy" if self.word == "step" else "none but workers"

    @property
    def plain_share(self) -> float:
        """Share of the epoch that a bare loop saves if the injected delay is switched off."""
        slow, fast = (median(self._plain(name)["seconds"]) for name in ("slow", "fast"))
        return 1 - fast / slow

    @property
    def recovered_share(self) -> float:
        """The same share by the ladder: that of the slow stage, minus the time that the stage takes
        without the delay."""
        ladder = self.record["explanation"]["ladder"]
        (row,) = (row for row in ladder["rows"] if row["rung"] == self.pipeline.stage)
        return row["share"]["value"] - self._base_s() / ladder["epoch_s"]["value"]

    @property
    def share_in_next(self) -> float:
        """Share of a bare loop's time that is spent in next()."""
        return self._share_in_next("slow")

    @property
    def predictions(self) -> list[Prediction]:
        """Predictions for changes of settings, and for switching the delay off, which the ladder
        predicts."""
        predictions = [self._prediction(each) for each in self.record["what_ifs"]]
        if self.pipeline.ratio and self.pipeline.stage != "step":
            off = Prediction(
                change="injection off",
                predicted=1 - self.recovered_share,
                realised=1 - self.plain_share,
                bounds=None,
                is_contended=self.pipeline.is_contended,
            )
            predictions.append(off)
        return predictions

    def _prediction(self, what_if: dict[str, Any]) -> Prediction:
        gain, bounds = what_if["predicted_gain"], None
        if isinstance(gain, dict):
            bounds = (1 - gain["high"], 1 - gain["low"])
            gain = gain["value"]
        workers = what_if["change"].removeprefix("num_workers=")
        busy = self.pipeline.kind != "sleep" or self.pipeline.step_kind != "sleep"
        crowded = busy and workers.isdigit() and int(workers) > 1
        return Prediction(
            change=what_if["change"],
            predicted=1 - gain,
            realised=what_if["realised_ratio"]["estimate"],
            bounds=bounds,
            is_contended=self.pipeline.is_contended or crowded or "device_prefetch" in workers,
        )

    def _share_in_next(self, name: str) -> float:
        times = self._plain(name)
        return sum(times["wait_s"]) / sum(times["seconds"])

    def _base_s(self) -> float:
        fast = self._plain("fast")
        start_up_s = median(fast["start_up_s"])
        if self.pipeline.stage == "start-up":
            return start_up_s
        if self.pipeline.stage == "hand-off":
            # The epoch minus its steps would be wrong: a step that sleeps 8 ms takes about 9.
            return median(fast["wait_s"]) - start_up_s
        return 0.0

    def _plain(self, name: str) -> dict[str, list[float]]:
        return self.record["plain"][name]
