"""fastloop explain: why a job takes as long as it does, and what would change that.

    fastloop explain [try=3] [dataset=<dataset>] [loader=<loader>] [<setting>=<value> ...]

Takes one job, by the overrides of `fastloop run`. It runs the job with more and
more of its loading left out, in interleaved rounds, and prints

- the verdict: how much of an epoch a perfect loader would save, and the part that
  is the cause, in one word: step, copy, start-up, hand-off, collate, transform,
  decode, read, or unattributed where the figures do not tell;
- the ladder: what each part adds to an epoch, and what is hidden behind the steps;
- what-ifs: the gain that a model of the loader predicts for other settings. The
  try=3 best ones, and torch_threads=1, are run beside the job as it is.

trials= is the number of rounds; after seconds=60 none begins beyond the third.
explain.json, in the folder of the command, has all of this.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

from fastloop.config.compose import compose_all, compose_job
from fastloop.config.flags import read_command_line
from fastloop.core.files import remove_unused, write_text
from fastloop.core.types import JobFailed, MachineBusy, UsageError
from fastloop.processes.lifecycle import handle_signals, restore_default_signals
from fastloop.sweep.request import JobRequest

if TYPE_CHECKING:
    from fastloop.trial.job import Job

FILE = "explain.json"
TRIES, MOST_TRIES = 3, 10


def main() -> None:
    """Print the explanation of the job; exits with 1 and one line on failure."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(__doc__, end="")
        return
    requests: list[JobRequest] = []
    try:
        tries, sys.argv[1:] = _take_tries(sys.argv[1:])
        requests = compose_all(_refuse_launcher)
        if requests:
            _explain(requests, tries)
    except (UsageError, MachineBusy, JobFailed) as error:
        sys.exit(str(error).removeprefix("BadData: "))
    finally:
        restore_default_signals()
        for request in requests[:1]:
            remove_unused(request.sweep_folder)


def _explain(requests: Sequence[JobRequest], tries: int) -> None:
    from fastloop.explain.explain import check_request, explain
    from fastloop.explain.explanation import format_explanation, to_json
    from fastloop.sweep.machine_lock import lock_machine
    from fastloop.sweep.progress import show_progress

    request = check_request(requests)
    flags = [each for each in read_command_line(sys.argv[1:]).flags if each != "--multirun"]

    def compose(overrides: Sequence[str]) -> Job:
        return compose_job(*flags, *overrides)

    handle_signals()
    sweep = request.sweep
    is_free = sweep.allow_concurrent and not sweep.wait
    with nullcontext() if is_free else lock_machine(sweep.wait), show_progress(0) as progress:
        explanation = explain(request, compose, tries, progress.begin_step)
    path = request.sweep_folder / FILE
    write_text(path, to_json(explanation))
    print(f"{format_explanation(explanation)}\n\nfiles:  {path}")


def _take_tries(arguments: Sequence[str]) -> tuple[int, list[str]]:
    """The value of try=, and the other arguments."""
    values = [each for each in arguments if each.startswith("try=")]
    others = [each for each in arguments if not each.startswith("try=")]
    text = values[-1].removeprefix("try=") if values else str(TRIES)
    if not re.fullmatch(r"\d{1,2}", text) or int(text) > MOST_TRIES:
        raise UsageError(f"try={text}: allowed: 0 to {MOST_TRIES}")
    return int(text), others


def _refuse_launcher(_: list[JobRequest]) -> int:
    print("explain measures here: allowed: hydra/launcher=basic", file=sys.stderr)
    return 1
