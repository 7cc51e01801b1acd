"""Causes for which tests of other loaders fail with FastLoader."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cause:
    """A cause of failed tests."""

    text: str
    pattern: str
    """A regular expression that matches the test's name or the message of its failure."""
    is_internal: bool
    """True if the test is about internals of the other loader, or about the wording of its
    messages."""


CAUSES = (
    Cause(
        "private attributes of DataLoader or of its iterator",
        r"has no attribute '_|test_(get_worker_info|partial_workers)\b",
        True,
    ),
    Cause("isinstance(loader, DataLoader)", r"is not an instance of|isinstance\(", True),
    Cause("Lightning builds the DataLoader of a user anew, by its `__init__`", r"needs to", True),
    Cause(
        "the format of a StatefulDataLoader's state",
        r"assert \{'epoch'|KeyError: '(_|dataset_state)|_num_yielded|_snapshot",
        True,
    ),
    Cause(
        "words of messages and warnings, or the moment of a warning",
        r"test_(segfault|timeout|iterable_style_dataset)\b|"
        r"test_(invalid_ctor_args_combinations|excessive_thread_creation_warning)\b",
        True,
    ),
    Cause(
        "the peer has to refuse what FastLoader does: settings may be assigned to, and a state is "
        "continued by any number of workers",
        r"invalid_assign_after_init|num_workers_mismatch",
        True,
    ),
    Cause(
        "functions of Lightning on DataLoader's attributes, and its warnings",
        r"test_data.py::test_(has_len_all|custom_batch_sampler|batch_sampler_shuffle)",
        True,
    ),
    Cause("a Mock in a dataset's place", r"'Mock' object is not", True),
    Cause("a live iterator keeps its threads running", r"left zombie thread", False),
    Cause(
        "random draws in samples use FastLoader's own seeds (documented)",
        r"test_\w*(worker_init_fn|seed|generator)",
        False,
    ),
    Cause("rows call no worker_init_fn (a warning says so)", r"error_in_init", False),
    Cause("an error of worker_init_fn comes with the first batch", r"test_init_error", False),
    Cause("batches always come in order (in_order=False warns)", r"out_of_order|in_order", False),
    Cause("a state has tensors in it, which JSON can't hold", r"not JSON serializable", False),
    Cause(
        "a state from between two epochs has none of the iterable's in it",
        r"TestMultiEpochState",
        False,
    ),
    Cause("the test took too long on this machine", r"TimeoutError: .* took longer than", False),
)
