"""The conditions that make two sets of results comparable: machine, versions, data, page cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from fastloop.core.result import Result
from fastloop.core.types import UsageError

Pairs = dict[str, tuple[Result, Result]]
"""Name of a job -> its result in the base set and its result in the new set."""
SOURCE, CONTENT = "data fingerprint", "data content"
UNKNOWN: tuple[object, ...] = (None, "")
"""Values in results of an older version, and of jobs that failed before they opened their data.
They count as equal to every value."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A value that is not the same in both sets."""

    job: str
    condition: str
    """A name that `allow=` accepts."""
    key: str
    base: object
    new: object


def find_differences(pairs: Pairs) -> Iterator[Difference]:
    """The conditions that differ, job by job."""
    for name, pair in pairs.items():
        for condition, values in CONDITIONS.items():
            before, after = map(values, pair)
            for key in sorted(_differing_keys(before, after)):
                yield Difference(
                    job=name, condition=condition, key=key, base=before[key], new=after[key]
                )


def check_comparable(
    pairs: Pairs, base: dict[str, Result], new: dict[str, Result], allowed: set[str]
) -> None:
    """Raise UsageError if the sets share no job, or differ in a condition not in `allowed`."""
    if not pairs:
        first, other = next(iter(base)), next(iter(new))
        raise UsageError(
            f"no job is in both sets: base has {len(base)} ({first}, …), "
            f"new has {len(new)} ({other}, …)"
        )
    for each in find_differences(pairs):
        if each.condition not in allowed:
            raise UsageError(
                f"{each.job}: different {each.key} ({each.base} in base, {each.new} in new); "
                f"allow={each.condition} compares them anyway"
            )


def parse_allow(names: set[str]) -> set[str]:
    """The names of conditions; raises UsageError for any other."""
    if unknown := sorted(names - CONDITIONS.keys()):
        shown, allowed = ",".join(sorted(names)), ",".join(CONDITIONS)
        raise UsageError(f"allow={shown}: no such difference: {unknown[0]}; allowed: {allowed}")
    return names


def _differing_keys(base: Mapping[str, object], new: Mapping[str, object]) -> list[str]:
    """Keys with known values that differ; the data's source may differ if its content is equal."""
    shared = base.keys() & new.keys()
    known = [key for key in shared if base[key] not in UNKNOWN and new[key] not in UNKNOWN]
    differing = [key for key in known if base[key] != new[key]]
    same_content = CONTENT in known and CONTENT not in differing
    return [key for key in differing if not (same_content and key == SOURCE)]


def _machine(result: Result) -> Mapping[str, object]:
    keys = ("host", "cpu", "cores", "cores_usable", "gpus")
    return {key: result.environment.get(key) for key in keys} | {
        "device": result.tags.get("device")
    }


def _versions(result: Result) -> Mapping[str, object]:
    """Versions of Python and the libraries."""
    # without fastloop: comparing two of its versions is a purpose of a comparison
    versions = dict(result.environment.get("versions") or {})
    versions.pop("fastloop", None)
    return versions | {"python": result.environment.get("python")}


def _data(result: Result) -> Mapping[str, object]:
    settings = {name: result.params.get(name) for name in ("epochs", "drop_last")}
    return {SOURCE: result.fingerprint, CONTENT: result.content} | settings


def _cache(result: Result) -> Mapping[str, object]:
    return {"cache state": result.params.get("cache")}


CONDITIONS: dict[str, Callable[[Result], Mapping[str, object]]] = {
    "machine": _machine,
    "versions": _versions,
    "data": _data,
    "cache": _cache,
}
"""A name that `allow=` accepts -> the values that have to be equal in both sets."""
