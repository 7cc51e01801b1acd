"""fastloop explain: why a job takes as long as it does, and which changes would help.

    fastloop explain [try=3] [dataset=<dataset>] [loader=<loader>] [<setting>=<value> ...]

Takes the arguments of `fastloop run` for one job. It runs this job several times, each
time with one part more of its loading left out, in interleaved rounds, and prints

- the verdict: how much of an epoch a perfect loader, for which steps never wait, would
  save, and in one word the part that causes the wait: copy, start-up, hand-off, collate,
  transform, decode or read. The word is step if there is hardly a wait, and
  unattributed if the figures do not show the cause;
- for each part the time that it adds to an epoch ("exposed"), and the time in which it
  works while steps run ("hidden");
- the most frequent causes, each with the answer whether it was found;
- what-ifs: the gain that a model of the loader predicts for other settings. The
  try=3 best of them, torch_threads=1, and the changes of what_if=, such as
  "what_if=['batch_size=128']", are run beside the job as it is.

trials= is the number of rounds. After seconds=60 no round begins beyond the third. An
epoch is then recorded batch by batch: timeline.svg is a picture of the work of the loop
and its workers, and timeline.json opens in ui.perfetto.dev. They are in the folder that
is printed last, as is explain.json with all findings. If a change saved time,
experiment/best.yaml has its settings:
fastloop run -cd <that folder> experiment=best
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from fastloop.config.command_line import read_command_line, refuse_several
from fastloop.config.compose import TRIAL_MODULES, compose_all, compose_changed
from fastloop.config.hydra_launcher import refuse_launcher
from fastloop.config.messages import usage_message
from fastloop.config.write_experiment import experiment_yaml
from fastloop.core.atomic_files import write_text
from fastloop.core.explanation import EXPLANATION_FILE, TIMELINE_SVG, TIMELINE_TRACE, WhatIf
from fastloop.core.outputs_folder import make_sweep_folder, remove_unused
from fastloop.core.passwords import without_passwords
from fastloop.core.text import plain_reason
from fastloop.core.types import (
    Failure,
    FailureKind,
    JobFailed,
    MachineBusy,
    Unsupported,
    UsageError,
)
from fastloop.processes.signals import handle_signals, restore_default_signals
from fastloop.sweep.forecast import describe_explanation, num_passes
from fastloop.sweep.request import JobRequest

EXPLAIN_MODULES = ("fastloop.explain.explain_job", *TRIAL_MODULES)
"""Modules that the processes of an explanation need, see `compose_all`."""
SEVERAL = "explain takes one job; fastloop run -m {} explain=true explains each of a sweep"
"""Message for a command line that makes several jobs; {} stands for its overrides."""


def main() -> None:
    """Print the explanation of the job; on failure, print one line and exit with 1."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(__doc__, end="")
        return
    requests: list[JobRequest] = []
    try:
        refuse_several(sys.argv[1:], SEVERAL)
        requests = compose_all(refuse_launcher("explain"), describe_explanation, EXPLAIN_MODULES)
        if requests:
            _explain(requests)
    except JobFailed as error:
        sys.exit(_failure_line(error.failure, requests[0].sweep_folder))
    except (UsageError, MachineBusy) as error:
        sys.exit(plain_reason(str(error)))
    finally:
        restore_default_signals()
        for request in requests[:1]:
            remove_unused(request.sweep_folder)


def _explain(requests: Sequence[JobRequest]) -> None:
    """Explain the job, write the files of the explanation, and print it."""
    from fastloop.explain.explain_job import check_request, explain_job
    from fastloop.explain.explanation_text import format_explanation, to_json
    from fastloop.sweep.early_check import refuse_unfit_model
    from fastloop.sweep.machine_lock import WAIT_HINT, lock_machine
    from fastloop.sweep.progress import show_progress

    request = check_request(requests)
    _check_asked(request)
    make_sweep_folder(request.sweep_folder)
    handle_signals()
    refuse_unfit_model(request)
    sweep = request.sweep
    is_free = sweep.allow_concurrent and not sweep.wait
    folder, job = request.sweep_folder, request.job
    num_steps = num_passes(job.most_trials, sweep.tries, job.device)
    with (
        nullcontext() if is_free else lock_machine(sweep.wait, hint=WAIT_HINT),
        show_progress(num_steps, "explain") as progress,
    ):
        explanation = explain_job(request, compose_changed, progress, folder, sweep.seconds)
    path = folder / EXPLANATION_FILE
    write_text(path, to_json(explanation))
    may_try = bool(sweep.tries or sweep.what_if)
    print(f"{format_explanation(explanation, may_try)}\n\nfiles:  {path}")
    print(f"        {TIMELINE_SVG} and {TIMELINE_TRACE} (for ui.perfetto.dev) are next to it")
    if explanation.best and _write_best(explanation.best, folder):
        print(f"best:   python -m fastloop.run -cd {shlex.quote(str(folder))} experiment=best")


def _check_asked(request: JobRequest) -> None:
    """Raise UsageError for a change in `what_if=` that is invalid, or makes an unsupported job."""
    from fastloop.explain.proposed_changes import read_changes
    from fastloop.trial.support import check_support

    for change in read_changes(request.sweep.what_if):
        try:
            check_support(compose_changed(change.apply(request.overrides)))
        except Unsupported as error:
            raise UsageError(f"what_if={change.name}: unsupported: {error}") from error
        except Exception as error:
            text = usage_message(error)
            if text is None:
                raise
            raise UsageError(f"what_if={change.name}: {text}") from error


def _write_best(best: WhatIf, folder: Path) -> bool:
    """Write the overrides of the best change to experiment/best.yaml in the folder.

    Returns False if a file can't hold the overrides, or could not be used.
    """
    # `-cd <folder>` makes the file an experiment. Hydra accepts only one -cd, so the file would be
    # useless if the job needs a -cd of its own.
    if read_command_line(sys.argv[1:]).config_dir:
        return False
    # The first three words are `python -m fastloop.run`.
    overrides = read_command_line(shlex.split(best.command)[3:]).overrides
    question = f"What does {best.change} gain, as `fastloop explain` has found?"
    if text := experiment_yaml(overrides, question):
        (folder / "experiment").mkdir(exist_ok=True)
        write_text(folder / "experiment" / "best.yaml", text)
    return bool(text)


def _failure_line(failure: Failure, folder: Path) -> str:
    """The reason of the failure, in one line.

    If the time limit has ended a pass, the stacks are written to a file in the folder, and the line
    names this file.
    """
    reason = plain_reason(failure.reason)
    if failure.kind is not FailureKind.TIMEOUT or not failure.details:
        return reason
    from fastloop.sweep.job_state import DETAILS

    path = folder / DETAILS
    write_text(path, without_passwords(failure.details))
    return f"{reason}; see {path}"
