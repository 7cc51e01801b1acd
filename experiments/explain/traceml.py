"""TraceML's diagnoses of the same pipelines, each a script under `traceml run`: see README.md.

    pip install traceml-ai
    python -m experiments.explain.traceml [folder] [every]

every: judge every n-th pipeline; 1: all. An interrupted run continues if it is given the same
folder.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from experiments.explain.pipelines import Pipeline
from experiments.explain.record import Record, add_record, read_records
from experiments.explain.run import FOLDER, other_programs

FILE = "traceml.jsonl"
SCRIPT = Path(__file__).with_name("traceml_script.py")
VARIABLE = "EXPLAINED_PIPELINE"


def main(folder: Path, every: int) -> None:
    records = [each for path in folder.glob("pipelines-*.jsonl") for each in read_records(path)]
    done = {each["name"] for each in read_records(folder / FILE)}
    for record in sorted(records, key=lambda each: each["number"])[::every]:
        if record["name"] in done:
            continue
        answer = {"name": record["name"]} | diagnose(Pipeline(**record["pipeline"]))
        add_record(folder / FILE, answer)
        print(answer, flush=True)


def diagnose(pipeline: Pipeline) -> Record:
    """TraceML's first diagnosis, and the share of the step's time that it attributes to the input;
    if it fails, the reason."""
    variable = {VARIABLE: json.dumps(vars(pipeline))}
    environment = os.environ | variable | {"PYTHONPATH": os.getcwd()}
    with tempfile.TemporaryDirectory() as folder, other_programs(pipeline.load):
        program = Path(sys.executable).with_name("traceml")
        command = [str(program), "run", str(SCRIPT), "--mode=summary"]
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        files = list(Path(folder).glob("logs/*/final_summary.json"))
        if done.returncode or not files:
            return {"status": None, "failure": (done.stderr or done.stdout)[-500:]}
        summary = json.loads(files[0].read_text())
    share = summary["step_time"]["diagnosis"]["evidence"].get("input_bound_share")
    return {"status": summary["primary_diagnosis"]["kind"], "share": share}


if __name__ == "__main__":
    arguments = sys.argv[1:]
    main(
        Path(arguments[0] if arguments else FOLDER).absolute(),
        int(arguments[1]) if len(arguments) > 1 else 1,
    )
