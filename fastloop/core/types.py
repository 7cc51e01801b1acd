"""Type aliases, exceptions and kinds of failure; the Protocols of options are in protocols.py."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, dataclass_transform

from fastloop.core.passwords import without_passwords
from fastloop.core.text import printable, shorten_words

# --help imports this module, and must not wait for the import of torch.
if TYPE_CHECKING:
    import torch


Tree = Any
"""A sample or a batch: any nesting of tuples, lists and dicts of tensors. The first dimension of a
batch is the batch dimension."""

Leaves = tuple[tuple[str, tuple[int, ...]], ...]
"""dtype and shape of each leaf of a sample."""

Step: TypeAlias = "Callable[[torch.Tensor, torch.Tensor], torch.Tensor]"
"""(inputs, targets) on the device -> the loss, or a value derived from the outputs."""

ExtractPair = Callable[[Tree], Any]
"""A batch on the device -> its (inputs, targets), the tensors that a model takes."""

Epochs = Callable[[int], Iterable[Tree]]
"""Number of an epoch -> its batches. No work for an epoch starts before the call."""

Batches = Generator[Tree, None, None]
"""The batches of an epoch, from a generator, which can be closed early."""

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def option(cls: type[T]) -> type[T]:
    """Turn a class into a frozen, keyword-only pydantic dataclass, with strict types and ranges and
    without unknown fields."""
    import pydantic.dataclasses

    config = pydantic.ConfigDict(extra="forbid", strict=True, arbitrary_types_allowed=True)
    option_class: Any = pydantic.dataclasses.dataclass(
        cls, frozen=True, kw_only=True, config=config
    )
    option_class.option_name = cls.__module__.rpartition(".")[2]
    return option_class


def name_of(thing: object) -> str:
    """The name of an option, as used on the command line and in the names of stores.

    It is the name of the option's yaml file and of its module. For a user's class that is not an
    `option` it is the last part of the name of the module that defines the class.
    """
    cls = type(thing)
    return getattr(cls, "option_name", cls.__module__.rpartition(".")[2])


class FailureKind(StrEnum):
    """Kind of the reason why a job has no result."""

    UNSUPPORTED = "unsupported"
    """The job can't run on this machine or with these settings."""
    INVALID = "invalid"
    """The loader delivered data that is not the dataset's."""
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out of memory"
    LOST = "lost"
    """Another rank failed, or the node of a rank does not answer."""
    ERROR = "error"
    """Any other error; the reason begins with the name of its class."""

    @property
    def is_verdict(self) -> bool:
        """True for a kind that every rank reaches by itself and that needs no traceback."""
        return self in (FailureKind.UNSUPPORTED, FailureKind.INVALID)


class Unsupported(Exception):  # noqa: N818 - a verdict on a job, shown as a row
    """The job can't run here; the message has the reason, and the remedy."""


class Invalid(Exception):  # noqa: N818 - a verdict on a job too
    """A loader does not deliver the dataset; the message names the difference."""


class UnevenBatches(Invalid):
    """Batches that are not trees of tensors of one length, or that differ in shape, as padded ones
    do."""


class UnclearCount(Invalid):
    """A batch whose number of samples is not clear."""


class BadData(Exception):  # noqa: N818 - "BadDataError" says the same twice
    """Unusable data; the message names the file and the problem."""


class SamplesDiffer(BadData):
    """Samples that can't form a batch because their trees, dtypes or shapes differ."""


class LengthsDiffer(SamplesDiffer):
    """Samples that differ only in the first dimension of their leaves, as padding allows."""


class UnusableLeaves(BadData):
    """Samples that hold something other than tensors, arrays and numbers, such as text."""


class TimeLimit(Exception):  # noqa: N818 - a verdict, as Unsupported is
    """Work that was stopped at its time limit; the message names the place in the code."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The reason why work in another process has no result."""

    kind: FailureKind
    message: str
    """One line; for kind ERROR it begins with the name of the exception's class."""
    details: str = ""
    """A traceback or a stack; empty if the message is enough."""

    @property
    def reason(self) -> str:
        """The text of MLflow's tag `status_reason`; users filter by its prefix."""
        is_named = self.kind not in (FailureKind.LOST, FailureKind.ERROR)
        return without_passwords(f"{self.kind}: {self.message}" if is_named else self.message)


class SignalExit(SystemExit):
    """An exit that a signal requested, as opposed to one that an imported module requested."""


class JobFailed(Exception):  # noqa: N818 - the outcome of a job, reported to its caller
    """Work in another process ended without a result."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure)
        self.failure = failure

    def __str__(self) -> str:
        return self.failure.reason


class UsageError(Exception):
    """A setting that can't be honoured; the message names the setting, its value and the allowed
    values."""

    def __str__(self) -> str:
        """The message for a terminal. Words that would fill a screen, such as a value of 10 KB, are
        cut off."""
        return printable(shorten_words(super().__str__()))


class MachineBusy(Exception):  # noqa: N818 - a state of the machine
    """Another process is measuring on this machine, or the lock can't be used; the message names
    the process or the file, and the remedy if the command has one."""
