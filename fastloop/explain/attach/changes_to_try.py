"""Choose the changes of a script's DataLoader that are worth a try.

`found` is the findings about one loop of the script, with the predictions of the model of a loader.
Samples wait if making a batch mostly waits, for example for a disk, instead of computing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastloop.core.cgroup import usable_cores
from fastloop.core.parts import Part
from fastloop.explain.attach.edit_call import LOADER
from fastloop.explain.attach.findings import LoopFindings
from fastloop.explain.attach.loop_what_ifs import LoopWhatIf
from fastloop.explain.attach.run_length import MOST_OF_ROUND, loop_of_rank
from fastloop.explain.attach.script_patch import ONE_PROCESS
from fastloop.explain.change import Change

MOST_CHANGES = MOST_OF_ROUND[0]
"""Maximum number of changes that are tried: all of them run in the first round."""
MANY_WORKERS = (8, 16)
"""Numbers of workers that are tried in addition if samples wait."""
LARGE_GAIN = 0.5
"""If samples wait, a change that is placed by its gain comes first only if the predicted gain is at
least this share of the time."""
OF_PRESENT_WORKERS = ("prefetch_factor", "multiprocessing_context")
"""Arguments of the present workers that are changed if the model predicts a gain."""
LOADING = (Part.DECODE, Part.TRANSFORM, Part.COLLATE)
"""The parts of an epoch that workers take from the loop."""


def choose_worker_counts(found: LoopFindings) -> set[int]:
    """The numbers of workers that are worth a try, without the present number.

    If samples wait, MANY_WORKERS are added. Numbers above the loader's maximum are left out.
    """
    counts = {0, 1, usable_cores(), 2 * usable_cores()}
    if found.samples_wait:
        counts |= {*MANY_WORKERS}
    # A stream that is not divided among workers would deliver each sample several times.
    most = found.facts["most_workers"]
    fitting = counts if most is None else {count for count in counts if count <= most}
    return fitting - {found.facts["num_workers"]}


def find_fastloader(found: LoopFindings) -> Change | None:
    """The change that puts FastLoader in DataLoader's place, and keeps the samples.

    None for a class that is derived from DataLoader, because such a class may do more.
    """
    facts = found.facts
    if facts["type"] != LOADER or facts.get("is_derived"):
        return None
    # In a process group, DataLoader without a DistributedSampler reads everything in each process.
    # FastLoader would read only its rank's share, so it gets the settings of a single process.
    is_divided = (facts.get("group_size") or 1) > 1 and facts["sampler"] != "DistributedSampler"
    return Change(is_fastloader=True, settings=ONE_PROCESS if is_divided else {})


def choose_changes(found: LoopFindings, batches: int | None = None) -> list[Change]:
    """The changes to try, the most promising first; at most MOST_CHANGES.

    The list begins with the numbers of workers, by predicted gain. If samples wait, the largest
    number comes first. Then the other changes are inserted one after the other:
    1. other arguments of workers: by predicted gain
    2. workers that are kept for the next pass: at the first place
    3. FastLoader: at the first place if it reads natively and its gain is predicted; otherwise by
       predicted gain
    4. pinned memory: at the third place
    5. fewer threads of torch: at the second place if workers need the cores, otherwise at the third

    batches: number of the loop's batches that each rank runs in a try; None: all of them.
    """
    workers = found.facts["num_workers"]
    # Workers end with their DataLoader, so they can't be kept if the script makes a DataLoader for
    # each pass.
    kept = {"persistent_workers": True} if found.passes > found.loaders else {}
    of_workers = {
        count: Change(settings={"num_workers": count, **(kept if count else {})})
        for count in choose_worker_counts(found)
    }

    # If samples wait, the largest number of workers comes first. Otherwise the prediction decides,
    # and the smaller one of two numbers with equal predictions comes first.
    def promise(count: int) -> tuple[float, int]:
        predicted = find_prediction(found, of_workers[count]) or 0.0
        return (0.0, count) if found.samples_wait else (predicted, -count)

    changes = [of_workers[count] for count in sorted(of_workers, key=promise, reverse=True)]
    for each in found.what_ifs:
        if each.gain and any(name in OF_PRESENT_WORKERS for name in each.change.settings):
            changes.insert(_place_by_gain(found, each.change, changes), each.change)
    # Runs that end in the first pass would not show that workers stay for the second one.
    has_passes = batches is None or batches > loop_of_rank(found).batches_per_pass
    if workers and kept and has_passes and not found.facts["persistent_workers"]:
        changes.insert(0, Change(settings=kept))
    if fastloader := find_fastloader(found):
        changes.insert(_place_fastloader(found, fastloader, changes), fastloader)
    # The model predicts nothing for copies to a device. Without workers no thread pins batches
    # while the step runs, so pinned memory is tried only with workers.
    if workers and found.facts.get("uses_cuda") and not found.facts.get("pin_memory"):
        changes.insert(2, Change(settings={"pin_memory": True}))
    # The model predicts nothing for torch's threads, so fewer threads are tried in any case.
    if divided := divide_cores(found, kept):
        changes.insert(1, divided)
    elif found.facts["torch_threads"] > 1:
        changes.insert(2, Change(torch_threads=1))
    return changes[:MOST_CHANGES]


def _place_fastloader(found: LoopFindings, fastloader: Change, others: Sequence[Change]) -> int:
    """The index at which FastLoader is inserted among the other changes."""
    if found.facts.get("is_native") and find_prediction(found, fastloader) is not None:
        return 0
    return _place_by_gain(found, fastloader, others)


def _place_by_gain(found: LoopFindings, change: Change, others: Sequence[Change]) -> int:
    """The index at which a change without a fixed place is inserted, by its predicted gain."""
    # The gain of FastLoader over a Dataset in Python may not be predicted. It then counts as zero.
    predicted = find_prediction(found, change) or 0.0
    # FastLoader has at most as many threads as there are cores. If samples wait, this is too few,
    # so the large numbers of workers are tried before the change. But if the change is predicted
    # to save LARGE_GAIN, for example because workers start for half of the time, it comes first.
    if found.samples_wait:
        return 0 if predicted >= LARGE_GAIN else len(MANY_WORKERS)
    # There may be time for a few changes only, so the change comes after all changes with the same
    # or a greater gain. Changes without a prediction may stand between these: kept workers, for
    # example, have none if their gain is too small to be listed.
    gains = [find_prediction(found, each) for each in others]
    ahead = [gain is not None and gain >= predicted for gain in gains]
    return max((place + 1 for place, is_ahead in enumerate(ahead) if is_ahead), default=0)


def divide_cores(found: LoopFindings, kept: Mapping[str, Any]) -> Change | None:
    """A change that divides the cores between workers and torch's threads.

    Present workers keep their number. If the loop has none, the cores are divided in proportion to
    the CPU time that loading and the step take. kept: settings that new workers get.

    None if such a change is not needed: the step leaves a core to a worker anyway, or samples wait
    and need no core. Also None if torch would get no fewer threads, if there is one core, if the
    loop can have no workers, or if no CPU time was measured.
    """
    cores = usable_cores()
    facts = found.facts
    fits = found.step_cores <= cores - 1 or facts["torch_threads"] < 2
    if fits or found.samples_wait or cores < 2 or facts["most_workers"] == 0:
        return None
    if facts["num_workers"]:
        threads = max(1, cores - facts["num_workers"])
        return Change(torch_threads=threads) if threads < facts["torch_threads"] else None
    load = found.load_cores * sum(
        found.shares[part].value for part in LOADING if part in found.shares
    )
    step = found.step_cores * found.shares[Part.STEP].value
    if load + step <= 0:
        return None
    most = min(cores - 1, facts["most_workers"] or cores)
    workers = max(1, min(most, round(cores * load / (load + step))))
    # The step may run in threads of another library, of which torch's setting does not change the
    # number.
    if cores - workers >= facts["torch_threads"]:
        return None
    return Change(settings={"num_workers": workers, **kept}, torch_threads=cores - workers)


def find_prediction(found: LoopFindings, change: Change) -> float | None:
    """The predicted gain of the change, or of its first setting alone, as a share of the time.

    None if no gain is predicted.
    """
    what_if = find_what_if(found, change)
    return what_if.gain if what_if else None


def find_what_if(found: LoopFindings, change: Change) -> LoopWhatIf | None:
    """The prediction for the change, or for its first setting alone; None if there is none."""
    if change.is_fastloader:
        return next((each for each in found.what_ifs if each.is_fastloader), None)
    # The model predicts nothing for torch's threads.
    if change.torch_threads is not None:
        return None
    for settings in (change.settings, dict([*change.settings.items()][:1])):
        for each in found.what_ifs:
            if each.change.settings == settings:
                return each
    return None
