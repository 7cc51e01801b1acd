"""How often do simulated sweeps with trials=auto make false claims, and how soon do they end?

python -m experiments.auto_trials.run equal|margin|serial|power|coverage|cut [sweeps]
python -m experiments.auto_trials.run measured
"""

import json
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

from experiments.intervals import ranks
from fastloop.core import stats
from fastloop.core.auto_trials import LOOKS, MOST_ROUNDS, share_of_last_look, share_of_look
from fastloop.core.pair_tests import equal_pairs, pairs, significant_pairs
from fastloop.core.serial_noise import CORRELATIONS, PRIOR, correlation_weights
from fastloop.core.stats import MINIMUM_EFFECT

JOBS = (2, 5, 20)
NOISES = (
    "lognormal", "drift", "heavy", "skewed", "modes .5", "one x5", "one x20", "half x10",
    "bursts", "serial .3", "serial .6",
)  # fmt: skip
MARGIN = np.log1p(MINIMUM_EFFECT)
MORE_SERIAL = (
    "serial .4", "serial .5", "serial .7", "serial .8", "serial .9", "serial .95", "one serial .9",
)  # fmt: skip
"""Further noises with autocorrelation. The prior of core/serial_noise.py was chosen on sweeps with
other seeds, and with correlations of 0, 0.3, 0.6, 0.7, 0.8 and 0.9."""
SEEDS = range(1, 6)
"""The seeds of these sweeps, none of which was used to choose the prior."""
AT_ONCE = 200
"""Number of sweeps in memory at once."""


def sweeps(noise, count, jobs, rng):
    """Logarithms of seconds (sweep, job, round) of equally fast jobs, in all possible rounds.

    serial c: the noise of each job is AR(1) with correlation c and a standard deviation of 5 %. one
    serial c: only the first job's noise is autocorrelated, that of the others is independent.
    bursts: 3 % noise, and foreign load that begins at 3 % of all trials, in the order in which they
    run, lasts for one to four trials, and adds 20 to 50 %. All others: as in
    experiments/intervals/ranks.py.
    """
    kind, _, value = noise.partition(" ")
    if kind == "serial":
        return 0.05 * _correlate(rng.standard_normal((count, jobs, MOST_ROUNDS)), float(value))
    if noise.startswith("one serial"):
        logs = rng.standard_normal((count, jobs, MOST_ROUNDS))
        logs[:, 0] = _correlate(logs[:, 0], float(noise.split()[-1]))
        return 0.05 * logs
    if kind == "bursts":
        in_order = _bursts(count, MOST_ROUNDS * jobs, rng).reshape(count, MOST_ROUNDS, jobs)
        order = rng.random(in_order.shape).argsort(axis=-1)
        by_job = np.take_along_axis(in_order, order, axis=-1).swapaxes(1, 2)
        return by_job + 0.03 * rng.standard_normal(by_job.shape)
    return ranks.campaigns(noise, count, jobs, MOST_ROUNDS, rng)


def _correlate(logs, correlation):
    for step in range(1, logs.shape[-1]):
        fresh = (1 - correlation**2) ** 0.5 * logs[..., step]
        logs[..., step] = correlation * logs[..., step - 1] + fresh
    return logs


def _bursts(count, trials, rng):
    begins = rng.random((count, trials)) < 0.03
    lasts, adds = rng.integers(1, 5, begins.shape), rng.uniform(0.2, 0.5, begins.shape)
    load = np.zeros(begins.shape)
    for later in range(4):
        reaches = np.where(begins & (lasts > later), adds, 0)[:, : trials - later]
        load[:, later:] = np.maximum(load[:, later:], reaches)
    return load


def run_sweeps(noise, count, jobs, slowness, seed=0, last=MOST_ROUNDS):
    """The results of each sweep after its last round: its number of rounds, the pairs told apart
    and their direction, the pairs named as equal, and whether a single job was named as fastest.

    slowness: logarithms of each job's true time. A sweep ends as core.auto_trials.is_decided says,
    or after `last` rounds, if its time is up.
    """
    number = (*NOISES, *MORE_SERIAL).index(noise)
    rng = np.random.default_rng([seed, number, jobs])
    parts = []
    for start in range(0, count, AT_ONCE):
        logs = sweeps(noise, min(AT_ONCE, count - start), jobs, rng) + slowness[:, None]
        parts.append(_end_sweeps(logs, last))
    return [np.concatenate(each) for each in zip(*parts, strict=True)]


def _end_sweeps(logs, last=MOST_ROUNDS):
    count, jobs = logs.shape[:2]
    first, second = pairs(jobs)
    rounds, open_ones = np.zeros(count, int), np.ones(count, bool)
    told = np.zeros((count, len(first)))
    equal, wins = np.zeros((count, len(first)), bool), np.zeros(count, bool)
    for look in sorted({*(each for each in LOOKS if each < last), last}):
        chosen = np.flatnonzero(open_ones)
        if not len(chosen):
            break
        seen = logs[chosen, :, :look]
        middles = np.median(seen[:, second] - seen[:, first], axis=-1)
        leader = np.median(seen, axis=-1).argmin(axis=-1)[:, None]
        of_leader = (first == leader) | (second == leader)
        towards = np.where(first == leader, middles, -middles) > 0

        def judge(look_share, seen=seen, middles=middles, of_leader=of_leader, towards=towards):
            is_told = significant_pairs(seen, look_share) & (np.abs(middles) >= MARGIN)
            is_equal = equal_pairs(seen, MARGIN, look_share=look_share)
            slower = is_told & towards
            return is_told, is_equal, slower, (slower | is_equal | ~of_leader).all(axis=-1)

        is_told, is_equal, slower, decided = judge(share_of_look(look))
        if look == last:
            at_end = judge(share_of_last_look(look))
            in_time = decided
            is_told, is_equal, slower = (
                np.where(in_time[:, None], early, late)
                for early, late in zip((is_told, is_equal, slower), at_end[:3], strict=True)
            )
        ends = decided | (look == last)
        rounds[chosen[ends]] = look
        told[chosen[ends]] = (is_told * np.sign(middles))[ends]
        equal[chosen[ends]] = (is_equal & of_leader)[ends]
        wins[chosen[ends]] = (slower | ~of_leader).all(axis=-1)[ends]
        open_ones[chosen[ends]] = False
    return rounds, told, equal, wins


def false_claims(noise, count, jobs, slowness):
    """Shares of sweeps that tell equal jobs apart, tell jobs apart in the wrong direction, or name
    jobs as equal that differ by 2 % or more; and the mean number of rounds."""
    rounds, told, equal, _ = run_sweeps(noise, count, jobs, slowness)
    first, second = pairs(jobs)
    truth = slowness[second] - slowness[first]
    wrong = ((told != 0) & (told != np.sign(truth))).any(axis=-1)
    not_equal = (equal & (np.abs(truth) >= MARGIN - 1e-9)).any(axis=-1)
    return wrong.mean(), not_equal.mean(), rounds.mean()


def equal(count):
    """Print the false differences of equal jobs, in % of sweeps, and the mean number of rounds."""
    _print_claims(count, np.zeros)


def margin(count):
    """Print the same if all jobs but the first take 2 % longer: each tie with the first is
    false."""
    _print_claims(count, lambda jobs: np.where(np.arange(jobs) == 0, 0, MARGIN))


def _print_claims(count, slowness):
    print("| noise | jobs | false difference, % | false tie, % | rounds |\n" + "|---" * 5 + "|")
    for noise in NOISES:
        for jobs in JOBS:
            wrong, tie, rounds = false_claims(noise, count, jobs, slowness(jobs))
            cells = f"{100 * wrong:.1f} | {100 * tie:.1f} | {rounds:.1f}"
            print(f"| {noise} | {jobs} | {cells} |", flush=True)


def serial(count):
    """Print the false differences of equal jobs with noises of other correlations, in % of as many
    sweeps with other seeds; with 20 jobs, of a fifth as many sweeps."""
    print("| noise | jobs | sweeps | false difference, % |\n" + "|---" * 4 + "|")
    for noise in ("lognormal", *sorted((*MORE_SERIAL, "serial .3", "serial .6"))):
        for jobs in JOBS:
            each = count // len(SEEDS) // (5 if jobs == JOBS[-1] else 1)
            told = [run_sweeps(noise, each, jobs, np.zeros(jobs), seed)[1] for seed in SEEDS]
            wrong = (np.concatenate(told) != 0).any(axis=-1)
            print(f"| {noise} | {jobs} | {len(wrong)} | {100 * wrong.mean():.1f} |", flush=True)


def power(count):
    """Print how often the one job that is faster is named as the winner, in %, and the mean number
    of rounds."""
    print("| the others take | noise | jobs | winner named, % | rounds |\n" + "|---" * 5 + "|")
    for factor in (1.05, 1.1, 1.2, 1.5, 3.0):
        for noise in ("lognormal", "heavy", "one x5", "bursts", "serial .3"):
            for jobs in JOBS:
                slowness = np.where(np.arange(jobs) == 0, 0, np.log(factor))
                rounds, told, _, wins = run_sweeps(noise, count, jobs, slowness)
                right = wins & (told[:, pairs(jobs)[0] == 0] > 0).all(axis=-1)
                cells = f"{100 * right.mean():.0f} | {rounds.mean():.1f}"
                print(f"| {factor} times | {noise} | {jobs} | {cells} |", flush=True)


def coverage(count):
    """Print how often the printed interval of the ratio of two jobs contains the true ratio, in
    %."""
    print("| noise | jobs | interval as printed | of that many trials alone |\n" + "|---" * 4 + "|")
    noises = *NOISES, *MORE_SERIAL
    for number, noise in enumerate(noises):
        for jobs in JOBS[:2]:
            rng = np.random.default_rng([0, number, jobs])
            logs = sweeps(noise, count, jobs, rng)
            rounds = _end_sweeps(logs)[0]
            held = np.zeros(2)
            for row, ran in zip(logs, rounds, strict=True):
                for place, look_share in enumerate((share_of_look(ran), None)):
                    low, high = stats.log_interval(
                        row[1, :ran] - row[0, :ran], look_share=look_share
                    )
                    held[place] += low <= 0 <= high
            cells = " | ".join(f"{100 * each / count:.1f}" for each in held)
            print(f"| {noise} | {jobs} | {cells} |", flush=True)


def cut(count):
    """Print the false claims of sweeps that end after this many rounds because their time is up, in
    %: equal jobs told apart, jobs that differ by 2 % named as equal, and how often a job that is
    1.4 times as fast as all others is named as the winner."""
    print("| noise | jobs | rounds | false difference | false tie | winner |\n" + "|---" * 6 + "|")
    for noise in ("lognormal", "one x5", "heavy", "bursts", "serial .6", "serial .9"):
        for jobs in JOBS:
            each = count if jobs < JOBS[-1] else count // 5
            for last in (4, 5, 6, 7, 9, 12):
                told = run_sweeps(noise, each, jobs, np.zeros(jobs), 7, last)[1]
                apart = np.where(np.arange(jobs) == 0, 0, MARGIN)
                tie = run_sweeps(noise, each, jobs, apart, 7, last)[2]
                slowness = np.where(np.arange(jobs) == 0, 0, np.log(1.4))
                wins = run_sweeps(noise, each, jobs, slowness, 7, last)[3]
                with_first = pairs(jobs)[0] == 0
                shares = (told != 0).any(-1), tie[:, with_first].any(-1), wins
                cells = " | ".join(f"{100 * share.mean():.1f}" for share in shares)
                print(f"| {noise} | {jobs} | {last} | {cells} |", flush=True)


def measured(_):
    """Print how probable the trials of each workload of a round of the suite are with each
    correlation: the logarithm of the likelihood, minus that with independent trials."""
    path = Path(__file__).parents[1] / "suite" / "results" / "2026-11" / "amd-epyc-2-cores.json"
    jobs = defaultdict(list)
    for cell in json.loads(path.read_text())["cells"]:
        windows = [cell["windows"][number] for number in sorted(cell["windows"] or {}, key=int)]
        seconds = [(w["stop_ns"] - w["start_ns"]) / w["epochs"] / w["repeats"] for w in windows]
        if seconds:
            jobs[cell["workload"]].append(np.log(seconds))
    print("| workload | loaders, rounds | noise |", *(f"{c} |" for c in CORRELATIONS))
    print("|---" * (3 + len(CORRELATIONS)) + "|")
    total = np.zeros(len(CORRELATIONS))
    for workload, logs in jobs.items():
        # A loader that joined or left the suite meanwhile has another number of trials.
        rounds = np.bincount([len(each) for each in logs]).argmax()
        whole = np.stack([each for each in logs if len(each) == rounds])
        found = np.log(correlation_weights(whole) / PRIOR)
        total += found - found[0]
        rest = whole - np.median(whole, axis=0)
        noise = f"{100 * np.median(rest.std(axis=-1, ddof=1)):.0f} %"
        cells = " | ".join(f"{each:.1f}" for each in found - found[0])
        print(f"| {workload} | {len(whole)}, {rounds} | {noise} | {cells} |")
    print("| all | | |", " | ".join(f"{each:.1f}" for each in total), "|")


if __name__ == "__main__":
    functions = equal, margin, serial, power, coverage, cut, measured
    parts = {function.__name__: function for function in functions}
    parts[sys.argv[1]](int(sys.argv[2]) if len(sys.argv) > 2 else 1_000)
