"""Judge pipelines with a known slow stage, and record the verdicts: see README.md.

    python -m experiments.explain.run [folder] [seconds] [part]

An interrupted run continues if it is given the same folder. No pipeline is begun after `seconds`,
so that one can measure in several quiet stretches. part: light-0, light-1 or heavy, to judge only
these pipelines.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from experiments.explain.judge import carry_out, judge_job, request_of
from experiments.explain.pipelines import Pipeline, all_pipelines
from experiments.explain.plain import measure_bytes_per_s, time_plain
from experiments.explain.record import Record, add_record, read_records
from fastloop.config.compose import compose_job
from fastloop.core.spans import now_ns, seconds_between
from fastloop.core.types import JobFailed
from fastloop.options.launcher.single import SingleLauncher

FOLDER = "outputs/explain"
LANES = ("light-0", "light-1")
"""Parts that run at the same time. Their pipelines only sleep, so that two fit on two cores."""
HEAVY = "heavy"
STRIDE = 3
"""Heavy pipelines are judged in this stride, so that an interrupted run has some of every kind."""
COMPUTE = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"
"""The code of another program that computes; it ends with this process."""
CHANGES_EVERY = 2
"""A change of settings is carried out for every CHANGES_EVERY-th pipeline."""


def main(folder: Path, seconds: float, part: str | None) -> None:
    start_ns = now_ns()
    if part is not None:
        judge_part(folder, seconds, part)
        return
    command = [sys.executable, "-m", "experiments.explain.run", str(folder), str(seconds)]
    lanes = [subprocess.Popen([*command, lane]) for lane in LANES]
    failed = [lane.wait() for lane in lanes]
    if any(failed):
        sys.exit("a part has failed, see above")
    judge_part(folder, seconds - seconds_between(start_ns, now_ns()), HEAVY)


def judge_part(folder: Path, seconds: float, part: str) -> None:
    """Judge the pipelines of a part that have no record yet."""
    os.environ["FASTLOOP_OUTPUTS"] = str(folder / "work" / part)
    path = folder / f"pipelines-{part}.jsonl"
    records = read_records(path)
    # This call imports the modules that the fork server is to preload.
    compose_job("benchmark=training")
    launcher = SingleLauncher(isolation="forkserver")
    known = [record["bytes_per_s"] for record in records]
    bytes_per_s = known[0] if known else launcher.call(measure_bytes_per_s)
    done = {record["name"] for record in records}
    pipelines = all_pipelines(bytes_per_s)
    begun_ns = now_ns()
    for number in numbers_of(pipelines, part):
        if pipelines[number].name in done:
            continue
        if seconds_between(begun_ns, now_ns()) > seconds:
            return
        start_ns = now_ns()
        record = judge_pipeline(pipelines[number], number, launcher)
        record |= {"bytes_per_s": bytes_per_s, "seconds": seconds_between(start_ns, now_ns())}
        add_record(path, record)
        print(_line(number, len(pipelines), record), flush=True)


def numbers_of(pipelines: list[Pipeline], part: str) -> list[int]:
    """The numbers of the pipelines that a part judges."""
    light = [number for number, each in enumerate(pipelines) if each.is_light]
    if part == HEAVY:
        numbers = [number for number in range(len(pipelines)) if number not in light]
        return [number for first in range(STRIDE) for number in numbers[first::STRIDE]]
    return light[LANES.index(part) :: len(LANES)]


def judge_pipeline(pipeline: Pipeline, number: int, launcher: SingleLauncher) -> Record:
    """Judge a pipeline. Returns a record that JSON can hold."""
    record: Record = {"number": number, "name": pipeline.name, "pipeline": asdict(pipeline)}
    record |= {"word": pipeline.word, "expected_share": pipeline.expected_share()}
    record |= {"is_contended": pipeline.is_contended, "load": os.getloadavg()[0]}
    with other_programs(pipeline.load):
        slow, fast = launcher.call(time_plain, pipeline)
        record["plain"] = {"slow": asdict(slow), "fast": asdict(fast)}
        try:
            request = request_of(pipeline.overrides())
            judgement = judge_job(request)
            changes = choose_changes(judgement.changes, number)
            rows = carry_out(request, judgement, changes) if changes else []
        except JobFailed as failure:
            return record | {"failure": str(failure)}
    return record | {
        "explanation": judgement.content,
        "verdict_s": judgement.seconds,
        "what_ifs": rows,
    }


@contextmanager
def other_programs(count: int) -> Iterator[None]:
    """Run this many other programs that compute, until the exit."""
    programs = [subprocess.Popen([sys.executable, "-c", COMPUTE]) for _ in range(count)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def choose_changes(changes: list[str], number: int) -> list[str]:
    """One of the changes, or none. The choice moves on with each pipeline, so that all kinds have
    their turn."""
    if number % CHANGES_EVERY or not changes:
        return []
    return [sorted(changes)[number // CHANGES_EVERY % len(changes)]]


def _line(number: int, total: int, record: Record) -> str:
    verdict = record.get("explanation", {}).get("verdict", {})
    said = verdict.get("word", record.get("failure"))
    took = f"{record['seconds']:.0f} s"
    return f"{number + 1:3}/{total} {record['name']}: {said}, truly {record['word']} ({took})"


if __name__ == "__main__":
    arguments = sys.argv[1:]
    main(
        Path(arguments[0] if arguments else FOLDER).absolute(),
        float(arguments[1]) if len(arguments) > 1 else float("inf"),
        arguments[2] if len(arguments) > 2 else None,
    )
