"""Run the test suites of other loaders with FastLoader in place of DataLoader: see README.md."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from experiments.peer_suites.causes import CAUSES, Cause
from experiments.peer_suites.plugin import LOADER, RECORDS

SUITES = {
    "torch": ["from-torch/test_dataloader.py"],
    "torchdata": ["from-torchdata"],
    "accelerate": ["from-accelerate/test_data_loader.py"],
    "lightning": [
        "from-lightning/tests_pytorch/trainer/test_dataloaders.py",
        "from-lightning/tests_pytorch/utilities/test_data.py",
        "from-lightning/tests_pytorch/loops/test_double_iter_in_iterable_dataset.py",
    ],
}
"""Name of a suite -> its tests, as paths below the folder with the peers' test files."""


@dataclass(frozen=True)
class Ended:
    """The outcome of a test."""

    test: str
    outcome: str
    message: str


def run_tests(folder: Path, tests: list[str], loader: str, keyword: str) -> dict[str, Ended]:
    """The outcome of each of these files or tests with this loader. If a test has several outcomes,
    a failure counts."""
    records = Path(tempfile.mkdtemp()) / "records.jsonl"
    records.touch()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "experiments.peer_suites.plugin"]
    command += ["-p", "no:cacheprovider"]
    command += ["-o", "addopts=", "-W", "default", "-c", "/dev/null", f"--rootdir={folder}"]
    command += ["-k", keyword] if keyword else []
    variables = os.environ | {RECORDS: str(records), LOADER: loader}
    here = [
        str(Path.cwd()),
        str(folder / "from-lightning"),
        *os.environ.get("PYTHONPATH", "").split(os.pathsep),
    ]
    variables["PYTHONPATH"] = os.pathsep.join(part for part in here if part)
    paths = [str(folder / test) for test in tests]
    subprocess.run([*command, *paths], env=variables, check=False, stdout=sys.stderr)
    ended: dict[str, Ended] = {}
    for line in records.read_text().splitlines():
        record = Ended(**json.loads(line))
        if record.test not in ended or record.outcome == "failed":
            ended[record.test] = record
    return ended


def find_cause(failure: Ended, baseline: dict[str, Ended]) -> Cause:
    """The cause for which a test has failed."""
    before = baseline.get(failure.test)
    if before is not None and before.outcome == "failed":
        return Cause("fails with torch's loader, too", "", True)
    text = f"{failure.test}\n{failure.message}"
    return next(
        (cause for cause in CAUSES if re.search(cause.pattern, text)), Cause("not known", "", False)
    )


def main() -> None:
    """Print a table of the suites, and a table of the causes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="has the peers' test files, see README.md")
    parser.add_argument("--suite", choices=SUITES, action="append")
    parser.add_argument("--keyword", default="", help="pytest's -k")
    parser.add_argument(
        "--baseline", action="store_true", help="run the failing tests with the peers' own loaders"
    )
    arguments = parser.parse_args()
    print(
        "| suite | tests | passed | skipped | failed | of internals | rest | passed of the rest |"
    )
    print("|---|---|---|---|---|---|---|---|")
    listed: list[str] = []
    for suite in arguments.suite or SUITES:
        ended = run_tests(arguments.folder, SUITES[suite], "fastloader", arguments.keyword)
        failed = [each.test for each in ended.values() if each.outcome == "failed"]
        baseline: dict[str, Ended] = {}
        if arguments.baseline and failed:
            baseline = run_tests(arguments.folder, failed, "dataloader", "")
        listed += print_suite(suite, ended, baseline)
    print("\n| suite | cause | of internals | tests | which |\n|---|---|---|---|---|")
    print("\n".join(listed))


def print_suite(suite: str, ended: dict[str, Ended], baseline: dict[str, Ended]) -> list[str]:
    """Print a suite's row. Returns the rows of its causes."""
    outcomes = Counter(each.outcome for each in ended.values())
    tests: dict[Cause, list[Ended]] = {}
    for failure in ended.values():
        if failure.outcome == "failed":
            tests.setdefault(find_cause(failure, baseline), []).append(failure)
    internal = sum(len(found) for cause, found in tests.items() if cause.is_internal)
    passed, rest = outcomes["passed"], outcomes["failed"] - internal
    share = f"{100 * passed / max(1, passed + rest):.1f} %"
    counts = sum(outcomes.values()), passed, outcomes["skipped"], outcomes["failed"], internal, rest
    print(f"| {suite} | {' | '.join(map(str, counts))} | {share} |", flush=True)
    rows = []
    for cause, found in sorted(tests.items(), key=lambda pair: -len(pair[1])):
        names = sorted({each.test.rpartition("::")[2].partition("[")[0] for each in found})
        kind = "yes" if cause.is_internal else "no"
        rows.append(f"| {suite} | {cause.text} | {kind} | {len(found)} | {', '.join(names)} |")
        if not cause.pattern and not cause.is_internal:
            rows += [f"  {each.test}: {each.message.splitlines()[0][:300]}" for each in found]
    return rows


if __name__ == "__main__":
    main()
