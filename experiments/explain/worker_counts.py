"""How well does `fastloop explain` predict other numbers of workers? README.md has the result.

    python -m experiments.explain.worker_counts [folder] [seconds]

Judges pipelines in random order, carries out every number of workers that was predicted, beside the
unchanged job twice, and prints a table. No pipeline is begun after `seconds`; an interrupted run
continues if it is given the same folder.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from statistics import median

from experiments.explain.judge import AS_IS, changed_job, judge_job, request_of, time_jobs
from experiments.explain.markdown import markdown, percent
from experiments.explain.pipelines import Pipeline, all_pipelines
from experiments.explain.plain import measure_bytes_per_s
from experiments.explain.record import Record, add_record, read_records
from fastloop.config.compose import compose_job
from fastloop.core import stats
from fastloop.core.spans import now_ns, seconds_between
from fastloop.core.types import JobFailed
from fastloop.options.launcher.single import SingleLauncher

FOLDER, FILE = "outputs/explain", "worker_counts.jsonl"
AGAIN = "as it is, again"
"""Name of the unchanged job that shows how much the machine differs from round to round."""
ROUNDS = 5
"""Number of interleaved rounds in which a change is carried out."""
LARGE = 0.05
"""Changes of an epoch by more than this share have a row of their own."""


def main(path: Path, seconds: float) -> None:
    start_ns = now_ns()
    # This call imports the modules that the fork server is to preload.
    compose_job("benchmark=training")
    records = read_records(path)
    known = [record["bytes_per_s"] for record in records]
    launcher = SingleLauncher(isolation="forkserver")
    bytes_per_s = known[0] if known else launcher.call(measure_bytes_per_s)
    pipelines = [each for each in all_pipelines(bytes_per_s) if not each.load]
    random.Random(1).shuffle(pipelines)
    done = {record["name"] for record in records}
    for pipeline in (each for each in pipelines if each.name not in done):
        if seconds_between(start_ns, now_ns()) > seconds:
            break
        record = {"name": pipeline.name, "bytes_per_s": bytes_per_s}
        add_record(path, record | judge_counts(pipeline))
        print(pipeline.name, flush=True)
    print(counts_table(read_records(path)))


def judge_counts(pipeline: Pipeline) -> Record:
    """The predicted and the realised times with each number of workers, relative to the unchanged
    job's, and those of the unchanged job itself; or the reason why there are none."""
    try:
        request = request_of(pipeline.overrides())
        judgement = judge_job(request)
        changes = [each for each in judgement.changes if each.startswith("num_workers=")]
        if not changes:
            return {"failure": "no number of workers was predicted"}
        jobs = {AS_IS: request.job, AGAIN: request.job}
        jobs |= {each: changed_job(judgement, each) for each in changes}
        seconds = time_jobs(request, jobs, ROUNDS)
    except JobFailed as failure:
        return {"failure": str(failure)}
    as_it_is_s = median(seconds[AS_IS])
    gains = {each: judgement.what_if(each)["predicted_gain"]["value"] for each in changes}
    return {
        "is_light": pipeline.is_light,
        "again": median(seconds[AGAIN]) / as_it_is_s,
        "predicted": {each: 1 - gains[each] for each in changes},
        "realised": {each: median(seconds[each]) / as_it_is_s for each in changes},
    }


def counts_table(records: list[Record]) -> str:
    """Errors of predictions, predicted / realised - 1, as a table."""
    judged = [each for each in records if "failure" not in each]
    large = [
        abs(predicted / realised - 1)
        for predicted, realised in _pairs(judged)
        if abs(realised - 1) > LARGE
    ]
    groups = {
        "cores to spare": [each for each in judged if each["is_light"]],
        "short of cores or of the lock": [each for each in judged if not each["is_light"]],
        "all": judged,
    }
    rows = [("pipelines", "numbers of workers", "median error", "p90")]
    for name, group in groups.items():
        errors = [abs(predicted / realised - 1) for predicted, realised in _pairs(group)]
        rows.append((f"{name}: {len(group)}", *_figures(errors)))
    rows.append((f"changes of an epoch by more than {percent(LARGE)}", *_figures(large)))
    again = [abs(each["again"] - 1) for each in judged]
    rows.append(("the unchanged job, again", *_figures(again)))
    return markdown(rows)


def _pairs(records: list[Record]) -> list[tuple[float, float]]:
    """(predicted, realised) time of each number of workers."""
    return [
        (predicted, record["realised"][change])
        for record in records
        for change, predicted in record["predicted"].items()
    ]


def _figures(errors: list[float]) -> tuple[str, str, str]:
    if not errors:
        return "0", "-", "-"
    middle, high = (percent(stats.percentile(errors, each), 1) for each in (50, 90))
    return str(len(errors)), middle, high


if __name__ == "__main__":
    arguments = sys.argv[1:]
    main(
        Path(arguments[0] if arguments else FOLDER).absolute() / FILE,
        float(arguments[1]) if len(arguments) > 1 else float("inf"),
    )
