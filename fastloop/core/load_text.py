"""The load of the machine in words: whether it was quiet, and how much other programs used."""

from __future__ import annotations

from fastloop.core.machine_counters import LEAST_SECONDS
from fastloop.core.machine_load import LEAST_NAMED_SHARE, MOST_MEMORY_PRESSURE, LoadSummary
from fastloop.core.number_text import show_fine_percent


def describe_load(
    summary: LoadSummary | None, stretch: str = "trial", stretches: str = "trials"
) -> list[str]:
    """A list with the text of `load_text`; empty if no load was recorded."""
    return [load_text(summary, stretch, stretches)] if summary else []


def load_text(summary: LoadSummary, stretch: str = "trial", stretches: str = "trials") -> str:
    """The sentences about the load of the machine, at the beginning of an answer.

    The sentences say whether the machine was quiet, and how many of its cores other processes
    used; or that this is unknown. stretch, stretches: the word for a measurement, in the singular
    and in the plural.
    """
    if summary.other_cores is None or summary.most_other_cores is None:
        return (
            "It is unknown whether the machine was quiet: this system does not tell what other "
            f"processes use, or each of the {stretches} was shorter than {LEAST_SECONDS} s."
        )
    during = f"the {stretches}" if summary.stretches > 1 else f"the {stretch}"
    cores = "1 core" if summary.cores == 1 else f"{summary.cores} cores"
    most = f"{summary.most_other_cores:.2f} of {cores}"
    stolen = _describe_stolen(summary)
    if not summary.busy:
        return (
            f"The machine was quiet: other processes used at most {most} during {during}.{stolen}"
        )
    names = ", ".join(summary.busiest)
    of_names = f" ({names})" if names else ""
    # A machine may be busy only because memory is short, with hardly any CPU time of others.
    further = f"{stolen}{_describe_memory(summary)}"
    if summary.is_quiet:
        return (
            f"The machine was quiet except in {summary.busy} of {summary.stretches} {stretches}: "
            f"other processes used up to {most}{of_names}.{further}"
        )
    if summary.stretches > 1:
        when = f" (median of {during}; {names})" if names else f" (median of {during})"
    else:
        when = f" during {during}{of_names}"
    return (
        f"The machine was busy: other processes used {summary.other_cores:.2f} of {cores}{when}."
        f"{further} The figures, and conclusions from them, may differ on a quiet machine."
    )


def _describe_stolen(summary: LoadSummary) -> str:
    """A sentence, after a blank, on the cores that the host took; empty if it took hardly any."""
    if summary.stolen_cores < LEAST_NAMED_SHARE * summary.cores:
        return ""
    return f" The host of this virtual machine took up to {summary.stolen_cores:.2f} for others."


def _describe_memory(summary: LoadSummary) -> str:
    """A sentence, after a blank, on waits for memory; empty if memory was not short."""
    if summary.memory_pressure <= MOST_MEMORY_PRESSURE:
        return ""
    share = show_fine_percent(summary.memory_pressure)
    return f" Memory was short: processes waited for it up to {share} of the time."
