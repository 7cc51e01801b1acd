"""Find the fastest settings of the user's own loader: `fastloop.tune(make_loader, space)`.

`tune_loop` is this function. It returns a `LoopTuning`. script_race.py also calls `race_loaders`.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from numbers import Real
from reprlib import repr as short_repr
from typing import TYPE_CHECKING, Any

from fastloop.core import stats
from fastloop.core.load_text import describe_load
from fastloop.core.machine_load import LoadSummary
from fastloop.core.text import wrap
from fastloop.core.types import Tree
from fastloop.processes.rank_group import resolve_device
from fastloop.reporting.notebook_html import notebook_html
from fastloop.sweep.bench_arguments import check_seconds, check_step
from fastloop.sweep.loader_timer import LoaderLike, default_step
from fastloop.sweep.progress import share_reports
from fastloop.trial.job_settings import MIN_WINDOW_S
from fastloop.tune.budget import Spending, TuneBudget
from fastloop.tune.loop_trials import THREADS_SETTING, LoopTrials
from fastloop.tune.race import RaceResult, race
from fastloop.tune.race_text import comparison_lines, comparison_table, verdict_text
from fastloop.tune.surrogate import Surrogate

if TYPE_CHECKING:
    from pandas import DataFrame

SCHEMA = 1
"""Number of the format that `LoopTuning.to_json` writes."""
MOST_COMBINATIONS = 2_000
"""Maximum number of combinations of settings in a space."""


@dataclass(frozen=True, kw_only=True, repr=False)
class LoopTuning:
    """The result of `fastloop.tune`.

    A configuration is one combination of settings. print() shows the verdict, the configurations
    that came closest to the winner, and the code that makes the loader.
    """

    settings: dict[str, Any]
    """The settings to use: the winner's if its gain is confirmed, otherwise the present ones."""
    race: RaceResult
    """Seconds of each configuration by round, the winner, and its confirmed gain."""
    reasons: dict[str, str]
    """Name of a configuration -> the reason why it could not be run."""
    configurations: dict[str, dict[str, Any]]
    """Name -> settings, for all configurations of the space; the present one comes first."""
    notes: tuple[str, ...] = ()
    """Sentences on the part of an epoch that trials read, and on the data that was compared."""
    machine_load: LoadSummary | None = None
    """The load by other programs during the trials; None: it was not measured."""

    @property
    def is_faster(self) -> bool:
        """True if `settings` are faster than the present ones beyond noise."""
        return self.race.is_faster

    @property
    def code(self) -> str:
        """Lines of Python that make the loader with these settings."""
        arguments = {
            name: value for name, value in self.settings.items() if name != THREADS_SETTING
        }
        shown = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
        lines = [f"loader = make_loader({shown})"]
        if self.settings.get(THREADS_SETTING):
            lines.insert(0, f"torch.set_num_threads({self.settings[THREADS_SETTING]})")
        return "\n".join(lines)

    def to_frame(self) -> DataFrame:
        """A pandas DataFrame with a row for each configuration that ran.

        The columns are the settings, rounds, seconds_median, ratio, ratio_low, ratio_high and
        is_winner. The ratio is the seconds relative to the winner's; None if no round ran both.
        """
        import pandas as pd

        rows = []
        for name, by_round in self.race.seconds.items():
            ratio = self.race.compare(name)
            row = {
                "rounds": len(by_round),
                "seconds_median": stats.median([*by_round.values()]),
                "ratio": ratio.estimate if ratio else None,
                "ratio_low": ratio.low if ratio else None,
                "ratio_high": ratio.high if ratio else None,
                "is_winner": name == self.race.winner,
            }
            rows.append(self.configurations[name] | row)
        return pd.DataFrame(rows)

    def to_json(self) -> str:
        """All fields as JSON text; a value that JSON can't hold is written as its repr()."""
        values = {"schema": SCHEMA, **asdict(self), "is_faster": self.is_faster}
        return json.dumps(values, indent=1, default=repr) + "\n"

    def _repr_html_(self) -> str:
        failed = [f"failed: {name}: {reason}" for name, reason in self.reasons.items()]
        answer = verdict_text(self.race, self.is_faster)
        first = describe_load(self.machine_load)
        notes = [*failed, *self.notes, self.code]
        return notebook_html(answer, comparison_table(self.race), notes, first)

    def __repr__(self) -> str:
        return f"{self.without_code()}\n{self.code}"

    def without_code(self) -> str:
        """A text with the verdict, the configurations that came closest, and notes."""
        answer = [*describe_load(self.machine_load), verdict_text(self.race, self.is_faster)]
        lines = [*wrap(answer), "", *comparison_lines(self.race)]
        failed = [f"failed: {name}: {reason}" for name, reason in self.reasons.items()]
        if self.race.not_run:
            left = f"{len(self.race.not_run):,}"
            failed.append(f"not run: {left} that promise less, or that the budget has no room for")
        return "\n".join([*lines, "", *wrap([*failed, *self.notes])])


def tune_loop(  # noqa: PLR0913 - the settings of a run, by their names
    make_loader: Callable[..., LoaderLike],
    space: Mapping[str, Sequence[Any]],
    step: Callable[[Tree], Any] | None = None,
    budget_s: float = 300.0,
    *,
    device: str = "auto",
    same_data: bool = True,
    min_window_s: float = MIN_WINDOW_S,
) -> LoopTuning:
    """Find the fastest settings of a loader among all combinations of a space.

    Combinations run in interleaved rounds in this process, each time with a new loader. Each round
    runs the present settings, and the combinations that look most promising after the trials so
    far. Fresh rounds confirm the winner's gain. A combination that raises an error, or that
    delivers other data, is left out. Long epochs are cut to about 2 s, or to less if the budget is
    small.

    Args:
        make_loader: called with one value of each setting; returns an iterable over batches, such
            as a DataLoader.
        space: the values of each setting, the present one first, in up to 2,000 combinations.
            `torch_threads` sets torch's threads, even if make_loader has no such argument.
        step: called with each batch. None: batches are read, or moved to the device.
        budget_s: seconds from the call to the result.
        device: auto, cpu, mps, cuda or cuda:<number>.
        same_data: True: compare the samples, if two epochs of the present loader have the same
            ones, which random transforms prevent. False: compare only the numbers of samples.
        min_window_s: repeat whole epochs until a measurement takes this many seconds.

    Raises ValueError for a wrong space or too small a budget, TypeError for a make_loader or step
    that is not a function, and any exception of the present settings.

    >>> fastloop.tune(make_loader, {"batch_size": [64], "num_workers": [0, 2]}).settings
    {'batch_size': 64, 'num_workers': 0}
    """
    _check_numbers(budget_s, min_window_s)
    check_step(step)
    _check_space(make_loader, space)
    settings = _combinations(space)
    spending = Spending(budget=TuneBudget(seconds=budget_s))
    trials = LoopTrials(
        make_loader=make_loader,
        settings=settings,
        step=default_step(resolve_device(device)) if step is None else step,
        device=resolve_device(device),
        same_data=same_data,
        min_window_s=min_window_s,
        budget_s=budget_s,
    )
    with share_reports("tune", spending.share_used) as begin_step:
        return race_loaders(trials, spending, begin_step)


def race_loaders(
    trials: LoopTrials,
    spending: Spending,
    begin_step: Callable[[str], None],
    expected: Mapping[str, float] | None = None,
) -> LoopTuning:
    """Race the configurations of `trials`, and return the settings to use.

    begin_step: called with the name of each step when the step begins. expected: name of a
    configuration -> its expected cost relative to others; the costs decide on the first trials.
    None: equal costs, because no model predicts the user's own loader.
    """
    settings = trials.settings
    present = trials.settings[trials.present_name]
    changes = [_find_changes(each, present) for each in settings.values()]
    predicted = [1.0 if expected is None else expected[name] for name in settings]
    surrogate = Surrogate(names=[*settings], changes=changes, predicted=predicted)
    begin_step("a first look")
    trials.read_present()

    def measure(name: str, number: int, room: float) -> float | None:
        begin_step(name)
        return trials.measure(name, number, room)

    result = race(surrogate, measure, spending.share_used)
    best = result.winner if result.is_faster else result.present
    return LoopTuning(
        settings={**settings[best]},
        race=result,
        reasons=trials.reasons,
        configurations={name: {**each} for name, each in settings.items()},
        notes=trials.notes,
        machine_load=trials.watch.summary(),
    )


def _check_numbers(budget_s: float, min_window_s: float) -> None:
    """Raise ValueError for an invalid number of seconds."""
    if not (isinstance(budget_s, Real) and 0 < budget_s < math.inf):
        raise ValueError(f"budget_s={budget_s!r}: allowed is a number of seconds, more than 0")
    check_seconds(seconds=None, min_window_s=min_window_s)


def _check_space(
    make_loader: Callable[..., LoaderLike], space: Mapping[str, Sequence[Any]]
) -> None:
    """Raise TypeError or ValueError for a wrong make_loader or space."""
    if not callable(make_loader):
        allowed = "allowed is a function that returns a loader"
        raise TypeError(f"make_loader={short_repr(make_loader)}: {allowed}")
    values = [*space.values()] if isinstance(space, Mapping) else [()]
    if not values or any(not _are_values(each) for each in values):
        allowed = "allowed: a dict of one value or more of each setting, as a list"
        raise ValueError(f"space={short_repr(space)}: {allowed}")
    count = math.prod(map(len, values))
    if count > MOST_COMBINATIONS:
        allowed = f"allowed: up to {MOST_COMBINATIONS:,}"
        raise ValueError(f"space: {count:,} combinations; {allowed}")
    parameters = inspect.signature(make_loader).parameters
    # A function with **settings takes any name.
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return
    if unknown := [name for name in space if name not in parameters and name != THREADS_SETTING]:
        raise ValueError(f"space: make_loader has no argument {', '.join(unknown)}")


def _are_values(values: Any) -> bool:
    """True for a list, or another sequence, of at least one value."""
    # A string is refused, because it would be taken for a list of its characters.
    is_listed = hasattr(values, "__len__") and hasattr(values, "__getitem__")
    return is_listed and not isinstance(values, str | bytes | Mapping) and len(values) > 0


def _combinations(space: Mapping[str, Sequence[Any]]) -> dict[str, dict[str, Any]]:
    """Name of a combination -> its settings, sorted by the number of changed settings.

    The present combination comes first, because it has no change.
    """
    present = {name: values[0] for name, values in space.items()}
    every = [dict(zip(space, values, strict=True)) for values in product(*space.values())]
    every.sort(key=lambda settings: sum(settings[name] != present[name] for name in space))
    return {_name(settings): settings for settings in every}


def _find_changes(settings: Mapping[str, Any], present: Mapping[str, Any]) -> frozenset[str]:
    """The settings that differ from the present ones, each as name=value."""
    return frozenset(
        f"{name}={value}" for name, value in settings.items() if value != present[name]
    )


def _name(settings: Mapping[str, Any]) -> str:
    """The name of a combination: each setting as name=value."""
    return " ".join(f"{name}={value}" for name, value in settings.items())
