"""The file of a suite: every raw value, and the figures that follow from them.

The JSON Schema of the file is suite.schema.json beside this module; docs/suite.md describes it.
"""

from __future__ import annotations

import json
from dataclasses import field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic.dataclasses import dataclass

from fastloop.core.files import write_text
from fastloop.core.result import Measurement, Shuffling
from fastloop.core.text import without_passwords
from fastloop.core.types import UsageError
from fastloop.suite.workloads import Configuration, Scope

SCHEMA = 1
"""Number of the file's schema; it grows when a field changes its meaning or goes."""
SCHEMA_FILE = Path(__file__).with_name("suite.schema.json")
STRICT = pydantic.ConfigDict(extra="forbid", ser_json_inf_nan="constants")
Finite = Annotated[float, pydantic.Field(allow_inf_nan=False)]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Figures:
    """Values that are recomputed from the windows of a workload's cells."""

    seconds: Finite
    """Median over the windows, for the epochs that were asked for."""
    seconds_interval: tuple[Finite, Finite] | None
    """95 % interval of that median; None below three windows."""
    samples_per_s: Finite
    """Median over the windows."""
    limit_share: Finite | None
    """Median share of the machine's limit, measured beside each window; None without a limit."""
    ratio: Finite | None
    """Seconds / seconds of the first cell of the workload, paired by round; None if it is not
    ranked, or has another number of windows."""
    ratio_interval: tuple[Finite, Finite] | None
    """95 % interval of the ratio; None for the first cell and below three windows."""
    rank: int | None
    """One more than the number of cells that are surely faster."""
    tied_with: list[str]
    """Labels of the other cells of that rank."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Cell:
    """A loader in a workload: measured, or null with a reason."""

    workload: str
    label: str
    loader: str
    configuration: Configuration
    overrides: list[str]
    """Overrides of the row beyond the workload's."""
    code: str
    """Path of the option's code in the repository."""
    cache: str
    """State of the page cache before each window: warm or cold."""
    null_reason: str
    """The reason why there are no figures; empty if there are."""
    unranked_reason: str = ""
    """The reason why a measured cell has no rank; empty if it may have one."""
    measured_ms: int | None = None
    """Start of the last window, in milliseconds since 1970."""
    content: str = ""
    """Digest of the samples that were delivered; empty for random samples, which are compared by
    their seeds, and for null."""
    windows: dict[int, Measurement] = field(default_factory=dict)
    """Number of the round -> clock readings of the timed window, and the limit beside it."""
    shuffling: Shuffling | None = None
    first_batch_s: Finite | None = None
    peak_pss_mib: Finite | None = None
    caveats: list[str] = field(default_factory=list)
    figures: Figures | None = None
    seals: dict[str, str] = field(default_factory=dict)
    """Name of each field above but the figures -> digest of its value, see `seals_of`."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class WorkloadRecord:
    """A workload as it was run."""

    name: str
    title: str
    overrides: list[str]
    samples: int | None
    sample_nbytes: int | None
    undetermined: str
    """The reason why its cells have no ranks; empty if they have."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class SuiteFile:
    """All cells of one machine in one round."""

    schema: Literal[1]
    suite: str
    round: str
    scope: Scope
    complete: bool
    """False if workloads or loaders were left out on the command line, or are still missing."""
    machine: dict[str, Any]
    versions: dict[str, str | None]
    commit: str
    """fastloop's commit, with -dirty if files differed."""
    code: str
    """Digest of fastloop's source."""
    workloads: list[WorkloadRecord]
    cells: list[Cell]
    seals: dict[str, str] = field(default_factory=dict)
    """Path of each field above but the cells -> digest of its value."""


FILE = pydantic.TypeAdapter(SuiteFile)


def schema_text() -> str:
    """The JSON Schema of the file, as suite.schema.json has it."""
    schema = FILE.json_schema(mode="serialization")
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
    return json.dumps(schema, indent=1) + "\n"


def save_suite(document: SuiteFile, path: Path) -> None:
    """Write the file atomically."""
    text = FILE.dump_json(document, indent=1).decode()
    write_text(path, without_passwords(text) + "\n")


def load_suite(path: Path) -> SuiteFile:
    """Read a file; raises UsageError, naming the field, if it does not match the schema."""
    try:
        text = path.read_bytes()
        number = json.loads(text).get("schema")
    except (OSError, ValueError, AttributeError) as error:
        raise UsageError(f"{path}: not a file of fastloop suite: {error}") from error
    if number != SCHEMA:
        raise UsageError(f"{path}: schema: {number!r}: allowed: {SCHEMA}")
    try:
        return FILE.validate_json(text)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UsageError(f"{path}: {where}: {first['msg']}") from error


def values_of(thing: Any, skipped: tuple[str, ...]) -> dict[str, Any]:
    """Name -> plain JSON value of each field of a dataclass of this module, but the skipped."""
    plain = pydantic.TypeAdapter(type(thing)).dump_python(thing, mode="json")
    return {each.name: plain[each.name] for each in fields(thing) if each.name not in skipped}
