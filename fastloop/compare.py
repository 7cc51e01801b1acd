"""python -m fastloop.compare: has anything become slower between two sets of results?

    python -m fastloop.compare base=<folder> new=<folder> [fail_above=5]
                               [allow=machine,versions,data,cache]

Jobs are paired by name. Exits with 1 where a job has become slower beyond noise (the whole 95 %
interval of new / base lies above 1) and by more than fail_above percent, or no longer finishes;
with 2 where the sets can't be compared: another machine, library version, data or cache state
unless allow= names it, or no job in both.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill

from fastloop import stats
from fastloop.arguments import parse, results_below
from fastloop.refusal import Refused
from fastloop.result import Measured, Result, measured

Pairs = dict[str, tuple[Result, Result]]
SETTINGS = {"base": "", "new": "", "fail_above": "5", "allow": ""}
SOURCE, CONTENT = "data fingerprint", "data content"
UNTOLD: tuple[object, ...] = (None, "")
"""What an older result, or a job that never saw its data, says: no difference is claimed."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """One benchmark of one job in both sets: times are of a sample, so that amounts may differ."""

    benchmark: str
    job: str
    base_s: float
    new_s: float
    ratio: stats.Ratio | None
    """new / base; None where there are too few trials to tell a change from noise."""

    def is_regression(self, fail_above: float) -> bool:
        """True where it has become slower beyond noise and by more than that many percent."""
        if self.ratio is None:
            return False
        return self.ratio.low > 1 and self.ratio.estimate > 1 + fail_above / 100


def main() -> None:
    """Print the comparison; exits with 1 for a regression, with 2 where there is none to make."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(__doc__)
        return
    try:
        settings = parse(sys.argv[1:], SETTINGS)
        fail_above = _percent(settings["fail_above"])
        base, new = _set(settings["base"], "base"), _set(settings["new"], "new")
        pairs = {name: (base[name], new[name]) for name in base if name in new}
        _check(pairs, base, new, _allowed(settings["allow"]))
    except Refused as why:
        print(why, file=sys.stderr)
        sys.exit(2)
    broken = [name for name, (old, now) in pairs.items() if _broke(old, now)]
    found = changes(pairs)
    print(format_changes(found, fail_above))
    for line in _notes(pairs, base, new):
        print(fill(line, 79, subsequent_indent="  ", break_long_words=False))
    sys.exit(int(bool(broken) or any(one.is_regression(fail_above) for one in found)))


def changes(pairs: Pairs) -> list[Change]:
    """Every benchmark that a job has finished in both sets."""
    return [
        _change(name, benchmark, measured(old, benchmark), measured(now, benchmark))
        for name, (old, now) in pairs.items()
        if old.status == now.status == "FINISHED"
        for benchmark in dict.fromkeys(b for trial in old.trials for b in trial.benchmarks)
        if measured(now, benchmark)
    ]


def unpaired_ratio(new: Sequence[float], base: Sequence[float]) -> stats.Ratio | None:
    """Ratio of the medians of two separate runs, with its 95 % interval and a two-sided p-value.

    None below five trials: there the interval misses the truth too often.
    """
    from scipy.stats import bootstrap, mannwhitneyu

    if min(len(new), len(base)) < 5:
        return None
    with_medians = bootstrap(
        (new, base), _median_ratio, vectorized=True, method="percentile", rng=0
    )
    low, high = (float(bound) for bound in with_medians.confidence_interval)
    return stats.Ratio(
        estimate=float(_median_ratio(new, base)),
        low=low,
        high=high,
        p_value=float(mannwhitneyu(new, base).pvalue),
    )


def format_changes(found: Sequence[Change], fail_above: float) -> str:
    """A table for each benchmark, within 80 columns."""
    tables = []
    for benchmark in dict.fromkeys(one.benchmark for one in found):
        head = f"{f'{benchmark}, us a sample':<31}{'base':>9}{'new':>9}  new/base   95 %"
        rows = [_row(one, fail_above) for one in found if one.benchmark == benchmark]
        tables.append("\n".join([head, *rows]))
    return "\n\n".join(tables) + ("\n" if tables else "")


def _median_ratio(new: Sequence[float], base: Sequence[float], axis: int = -1):
    import numpy as np

    return np.median(new, axis=axis) / np.median(base, axis=axis)


def _change(job: str, benchmark: str, old: list[Measured], now: list[Measured]) -> Change:
    base_s, new_s = ([one.seconds / one.samples for one in trials] for trials in (old, now))
    return Change(
        benchmark=benchmark,
        job=job,
        base_s=stats.median(base_s),
        new_s=stats.median(new_s),
        ratio=unpaired_ratio(new_s, base_s),
    )


def _row(one: Change, fail_above: float) -> str:
    figures = f"{1e6 * one.base_s:>9.4g}{1e6 * one.new_s:>9.4g}  "
    if one.ratio is None:
        figures += f"{one.new_s / one.base_s:>8.3f}   too few trials"
    else:
        figures += f"{one.ratio.estimate:>8.3f}   {one.ratio.low:.3f} to {one.ratio.high:.3f}"
        figures += f" {_word(one, fail_above)}"
    name = one.job if len(one.job) < 31 else f"{one.job}\n"
    return (f"{name:<31}" if "\n" not in name else name + " " * 31) + figures.rstrip()


def _word(one: Change, fail_above: float) -> str:
    if one.is_regression(fail_above):
        return "SLOWER"
    if one.ratio is not None and one.ratio.high < 1:
        return "faster"
    return "slower" if one.ratio is not None and one.ratio.low > 1 else ""


def _notes(pairs: Pairs, base: dict[str, Result], new: dict[str, Result]) -> list[str]:
    """What the table does not show: jobs in one set only, unfinished ones, other settings."""
    lines = [f"only in base: {name}" for name in base if name not in new]
    lines += [f"only in new: {name}" for name in new if name not in base]
    for name, (old, now) in pairs.items():
        if not old.status == now.status == "FINISHED":
            word = "NO LONGER FINISHES" if _broke(old, now) else "not compared"
            told = f"base {_ending(old)}, new {_ending(now)}"
            same = _ending(old) == _ending(now)
            lines += [f"{word}: {name}: {f'{_ending(old)} in both' if same else told}"]
    differing = {
        f"{name} {old.params.get(name)} -> {now.params.get(name)}"
        for old, now in pairs.values()
        for name in old.params.keys() | now.params.keys()
        if old.params.get(name) != now.params.get(name)
        and not name.endswith((".root", "cache", "trials"))
    }
    return lines + [f"differs: {one}" for one in sorted(differing)]


def _ending(result: Result) -> str:
    return f"{result.status} {result.status_reason}".strip()


def _broke(old: Result, now: Result) -> bool:
    return old.status == "FINISHED" != now.status


def _percent(value: str) -> float:
    try:
        percent = float(value)
    except ValueError:
        percent = math.nan
    if not 0 <= percent < math.inf:
        raise Refused(f"fail_above={value}: allowed: percent, 0 or more")
    return percent


def _allowed(value: str) -> set[str]:
    names = set(value.split(",")) - {""}
    if unknown := sorted(names - SAME.keys()):
        raise Refused(f"allow={value}: no such difference: {unknown[0]}; allowed: {','.join(SAME)}")
    return names


def _set(folder: str, setting: str) -> dict[str, Result]:
    if not folder:
        raise Refused(f"{setting}=: name a folder with result.json in it or below")
    found: dict[str, Result] = {}
    for result in results_below(Path(folder), setting):
        if result.name in found:
            raise Refused(f"{setting}={folder}: {result.name} is in two sweeps; name one's folder")
        found[result.name] = result
    return found


def _check(
    pairs: Pairs, base: dict[str, Result], new: dict[str, Result], allowed: set[str]
) -> None:
    """Raise Refused where the sets share no job, or differ in what must be the same."""
    if not pairs:
        first, other = next(iter(base)), next(iter(new))
        raise Refused(
            f"no job is in both: base has {len(base)} ({first}, …), new has {len(new)} ({other}, …)"
        )
    for name, both in pairs.items():
        for kind, tell in SAME.items():
            old, now = (tell(result) for result in both)
            other = _others(old, now)
            if other and kind not in allowed:
                key = min(other)
                raise Refused(
                    f"{name}: another {key} ({old[key]} in base, {now[key]} in new); "
                    f"allow={kind} compares them all the same"
                )


def _others(old: Mapping[str, object], now: Mapping[str, object]) -> list[str]:
    """What both tell, and tell otherwise; where data comes from is not asked where it is equal."""
    shared = old.keys() & now.keys()
    told = [key for key in shared if old[key] not in UNTOLD and now[key] not in UNTOLD]
    other = [key for key in told if old[key] != now[key]]
    same_content = CONTENT in told and CONTENT not in other
    return [key for key in other if not (same_content and key == SOURCE)]


def _machine(result: Result) -> Mapping[str, object]:
    keys = ("host", "cpu", "cores", "cores_usable", "gpus")
    return {key: result.environment.get(key) for key in keys} | {
        "device": result.tags.get("device")
    }


def _versions(result: Result) -> Mapping[str, object]:
    """fastloop's own is left out: what changed in it is what one wants to know."""
    found = dict(result.environment.get("versions") or {})
    found.pop("fastloop", None)
    return found | {"python": result.environment.get("python")}


def _data(result: Result) -> Mapping[str, object]:
    amount = {name: result.params.get(name) for name in ("epochs", "drop_last")}
    return {SOURCE: result.fingerprint, CONTENT: result.content} | amount


def _cache(result: Result) -> Mapping[str, object]:
    return {"cache state": result.params.get("cache")}


SAME: dict[str, Callable[[Result], Mapping[str, object]]] = {
    "machine": _machine,
    "versions": _versions,
    "data": _data,
    "cache": _cache,
}
"""What must be the same, unless allow= names it."""


if __name__ == "__main__":
    main()
