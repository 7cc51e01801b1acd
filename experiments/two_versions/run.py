"""How often does `fastloop check against=` tell equal versions apart, and how often does it find a
slower one?

python -m experiments.two_versions.run simulated [campaigns]
python -m experiments.two_versions.run real [runs] [factor]
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from fastloop.core.auto_trials import LOOKS, MOST_ROUNDS
from fastloop.reporting.version_changes import (
    RoundTimes,
    find_version_changes,
    judge_change,
    needs_no_round,
    round_means,
)

NOISE = 0.05
"""Standard deviation of the logarithm of a trial's time."""
FAIL_ABOVE = 2.0
"""The default of fail_above=, in percent."""
CASES = ((1.0, 0.0), (1.05, 0.0), (1.1, 0.0), (1.0, 0.3), (1.05, 0.3))
"""(factor, correlation): the candidate's time relative to the reference's, and the correlation of
successive trials of a version."""
DATASET = """\
import time

import torch


class Rows:
    def __len__(self):
        return 64

    def __getitem__(self, index):
        end = time.perf_counter() + {seconds}
        while time.perf_counter() < end:
            pass
        return torch.full((4,), float(index)), index
"""
JOB = "job: dataset._target_=rows.Rows loader=raw benchmark=traversal epochs=1 batch_size=8\n"
SECONDS = 0.001


def run_check(rng, factor, pairs, correlation=0.0, noise=NOISE):
    """Simulate a check with the command's own rule. Returns (told, is different, rounds)."""
    trials = MOST_ROUNDS * pairs
    base, new = (np.exp(noise * _series(rng, trials, correlation)) for _ in range(2))
    both = [round_means(each, pairs) for each in (base, factor * new)]
    for rounds in LOOKS:
        times = {("job", "traversal"): RoundTimes(base=both[0][:rounds], new=both[1][:rounds])}
        if needs_no_round(times, rounds, pairs, FAIL_ABOVE):
            break
    (found,) = find_version_changes(times, pairs)
    return judge_change(found, FAIL_ABOVE), found.is_slower or found.is_faster, rounds


def _series(rng, trials, correlation):
    """Draw AR(1) noise with a standard normal distribution."""
    values = rng.standard_normal(trials)
    for step in range(1, trials):
        fresh = (1 - correlation**2) ** 0.5 * values[step]
        values[step] = correlation * values[step - 1] + fresh
    return values


def simulate(factor, pairs, correlation, campaigns, seed=0):
    """Counts of the checks' answers, and the median of their rounds."""
    rng = np.random.default_rng(seed)
    found = [run_check(rng, factor, pairs, correlation) for _ in range(campaigns)]
    told = [each[0] for each in found]
    counts = {word: told.count(word) for word in ("slower", "no slower", "")}
    return counts | {
        "different": sum(bool(each[1]) for each in found),
        "rounds": float(np.median([each[2] for each in found])),
    }


def print_simulated(campaigns):
    """Print the outcomes of simulated checks for each case."""
    print("pairs factor serial  slower  no slower  not judged  different  rounds (median)")
    for pairs in (1, 4, 8):
        for factor, correlation in CASES:
            found = simulate(factor, pairs, correlation, campaigns)
            counts = [found[key] for key in ("slower", "no slower", "", "different")]
            shown = "  ".join(f"{each:6}" for each in counts)
            print(
                f"{pairs:5} {factor:6} {correlation:6}  {shown}  {found['rounds']:6g}", flush=True
            )


def print_real(runs, factor):
    """Run the command in a repository with a candidate that is slower by this factor."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "fastloop.yaml").write_text(JOB)
        (folder / ".gitignore").write_text("outputs/\n__pycache__/\n")
        (folder / "rows.py").write_text(DATASET.format(seconds=SECONDS))
        identity = ("-c", "user.name=someone", "-c", "user.email=someone@example.org")
        for words in (("init", "-q"), ("add", "."), (*identity, "commit", "-q", "-m", "Rows")):
            subprocess.run(["git", *words], cwd=folder, check=True)
        (folder / "rows.py").write_text(DATASET.format(seconds=factor * SECONDS))
        command = [sys.executable, "-m", "fastloop", "check", "against=HEAD"]
        statuses = []
        for run in range(runs):
            done = subprocess.run(
                command, cwd=folder, stdout=subprocess.PIPE, text=True, check=False
            )
            statuses.append(done.returncode)
            effort = next((each for each in done.stdout.splitlines() if " rounds of " in each), "")
            print(f"{run + 1}: status {done.returncode}: {done.stdout.splitlines()[:1]} {effort}")
    print(
        f"factor {factor:g}, {runs} runs: {statuses.count(1)} slower, {statuses.count(0)} no slower"
    )


if __name__ == "__main__":
    kind, *numbers = sys.argv[1:]
    if kind == "simulated":
        print_simulated(*(int(each) for each in numbers or [200]))
    elif kind == "real":
        print_real(int((numbers or [20])[0]), float((numbers[1:] or [1])[0]))
    else:
        sys.exit(__doc__)
