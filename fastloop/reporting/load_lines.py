"""The first lines of an answer: was the machine quiet while the trials ran?"""

from __future__ import annotations

from collections.abc import Sequence

from fastloop.core.machine_load import Load, summarize_loads
from fastloop.core.result import Result


def load_lines(results: Sequence[Result]) -> list[str]:
    """A sentence for each machine that ran trials, with its name if there are several.

    Empty for results of earlier versions, which have no record of the load.
    """
    by_host: dict[str, list[Load | None]] = {}
    for result in results:
        host = str(result.environment.get("host", ""))
        by_host.setdefault(host, []).extend(trial.load for trial in result.trials)
    summaries = {host: summarize_loads(loads) for host, loads in by_host.items()}
    sentences = {host: summary.describe() for host, summary in summaries.items() if summary}
    if len(sentences) < 2:
        return [*sentences.values()]
    return [f"{host}: {sentence}" for host, sentence in sentences.items()]
