"""Choose the changes of a script's DataLoader that are worth a try, the most promising first.

`fastloop attach --try` runs the script with each of these changes.
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
from fastloop.explain.change import Change

MOST_CHANGES = MOST_OF_ROUND[0]
"""Maximum number of changes that are tried: all of them run in the first round."""
MANY_WORKERS = (8, 16)
"""Numbers of workers that are tried in addition if samples wait."""
LARGE_GAIN = 0.5
"""If samples wait, a change that is placed by its gain comes first only if the predicted gain is at
least this share of the time."""
OF_PRESENT_WORKERS = ("prefetch_factor", "multiprocessing_context")
"""Other arguments than the number of workers that are changed if the model predicts a gain."""
ONE_PROCESS: Mapping[str, Any] = {"rank": 0, "world_size": 1}
"""The settings with which FastLoader reads the whole dataset in each process of a group, as
DataLoader does."""
FIRST, SECOND, THIRD = range(3)
"""Places in the list of changes."""
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
    """The change that puts FastLoader in DataLoader's place, with settings that keep its samples.

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

    The list begins as the other numbers of workers, see `_change_workers`. Five kinds of changes
    are then inserted one after another, and each moves the changes behind its place back:

    1. other arguments of workers: by predicted gain, see `_place_by_gain`
    2. present workers that stay for the next pass: first
    3. FastLoader: first if it reads natively and its gain is predicted, or else by predicted gain
    4. pinned memory: third
    5. fewer threads of torch: second if workers need the cores, or else third

    For example, for a loop with 2 workers on 4 cores and without predictions, steps 2 and 3 make
    `FastLoader, persistent_workers=True, num_workers=0, num_workers=1, ...`. Steps 4 and 5 insert
    `torch.set_num_threads(1), pin_memory=True` before `num_workers=0`.

    batches: number of the loop's batches in each run, and in each rank; None: as many as it had.
    """
    changes = _change_workers(found)
    for each in _change_worker_arguments(found):
        changes.insert(_place_by_gain(found, each, changes), each)
    if stays := _keep_present_workers(found, batches):
        changes.insert(FIRST, stays)
    if fastloader := find_fastloader(found):
        is_sure = found.facts.get("is_native") and find_prediction(found, fastloader) is not None
        place = FIRST if is_sure else _place_by_gain(found, fastloader, changes)
        changes.insert(place, fastloader)
    # The model predicts nothing for copies to a device, nor for torch's threads. These changes have
    # fixed places, so that they are tried in any case.
    if pinned := _pin_memory(found):
        changes.insert(THIRD, pinned)
    if divided := divide_cores(found):
        changes.insert(SECOND, divided)
    elif found.facts["torch_threads"] > 1:
        changes.insert(THIRD, Change(torch_threads=1))
    return changes[:MOST_CHANGES]


def _settings_to_stay(found: LoopFindings) -> dict[str, bool]:
    """The setting by which workers stay for the next pass; empty if they can't stay.

    If the script makes a DataLoader for each pass, its workers end with it.
    """
    return {"persistent_workers": True} if found.passes > found.loaders else {}


def _change_workers(found: LoopFindings) -> list[Change]:
    """Changes of the number of workers: the largest number first if samples wait.

    Otherwise the changes are ordered by predicted gain, and the smaller of two numbers with equal
    gains comes first. A number without a prediction counts as a gain of 0.
    """
    stays = _settings_to_stay(found)
    changes = [
        Change(settings={"num_workers": count, **(stays if count else {})})
        for count in sorted(choose_worker_counts(found))
    ]
    if found.samples_wait:
        return changes[::-1]
    # The sort is stable: changes with equal gains stay in the order of their numbers.
    return sorted(changes, key=lambda each: find_prediction(found, each) or 0.0, reverse=True)


def _change_worker_arguments(found: LoopFindings) -> list[Change]:
    """Changes of OF_PRESENT_WORKERS that are predicted to save time."""
    return [
        each.change
        for each in found.what_ifs
        if each.gain and any(name in OF_PRESENT_WORKERS for name in each.change.settings)
    ]


def _keep_present_workers(found: LoopFindings, batches: int | None) -> Change | None:
    """The change by which the present workers stay for the next pass; None if it would not help.

    batches: as in `choose_changes`.
    """
    stays = _settings_to_stay(found)
    can_help = found.facts["num_workers"] and stays and not found.facts["persistent_workers"]
    # Runs that end in the first pass would not show that workers stay for the second one.
    has_passes = batches is None or batches > loop_of_rank(found).batches_per_pass
    return Change(settings=stays) if can_help and has_passes else None


def _pin_memory(found: LoopFindings) -> Change | None:
    """The change by which batches are pinned; None if the script does so, or if it has no use."""
    facts = found.facts
    # DataLoader pins in a thread beside the step only if workers make the batches.
    can_help = facts["num_workers"] and facts.get("uses_cuda") and not facts.get("pin_memory")
    return Change(settings={"pin_memory": True}) if can_help else None


def _place_by_gain(found: LoopFindings, change: Change, others: Sequence[Change]) -> int:
    """The place of a change among the others, from its predicted gain.

    The place is behind the last change with an equal or greater gain, or first if there is no such
    change. If samples wait, the place is third, so that large numbers of workers are tried before
    the change, or first if the gain is LARGE_GAIN or more.
    """
    # The gain of FastLoader over a Dataset in Python may not be predicted.
    predicted = find_prediction(found, change) or 0.0
    # FastLoader has at most as many threads as there are cores. If samples wait, this is too few,
    # so the large numbers of workers are tried before the change. But if the change is predicted
    # to save LARGE_GAIN, for example because workers start for half of the time, it comes first.
    if found.samples_wait:
        return FIRST if predicted >= LARGE_GAIN else len(MANY_WORKERS)
    # Changes without a prediction, such as workers that are kept if that is predicted to save less
    # than is listed, may stand between those with one.
    gains = [find_prediction(found, each) for each in others]
    ahead = [place for place, gain in enumerate(gains) if gain is not None and gain >= predicted]
    return ahead[-1] + 1 if ahead else FIRST


def divide_cores(found: LoopFindings) -> Change | None:
    """A change that divides the cores between workers and torch's threads.

    Torch gets the cores that the workers leave, at least one: with 3 workers on 8 cores it gets 5
    threads. If the loop has no workers, the change adds some, see `_share_for_workers`.

    None if the step leaves a core to a worker anyway, if samples wait and need no core, or if torch
    gets no fewer threads; also if there is one core, if the loop can have no workers, or if no time
    was measured.
    """
    cores = usable_cores()
    facts = found.facts
    fits = found.step_cores <= cores - 1 or facts["torch_threads"] < 2
    if fits or found.samples_wait or cores < 2 or facts["most_workers"] == 0:
        return None
    workers = facts["num_workers"] or _share_for_workers(found, cores)
    threads = max(1, cores - workers)
    # A step in threads of another library than torch does not get fewer by torch's number.
    if not workers or threads >= facts["torch_threads"]:
        return None
    is_new = not facts["num_workers"]
    added = {"num_workers": workers, **_settings_to_stay(found)} if is_new else {}
    return Change(settings=added, torch_threads=threads)


def _share_for_workers(found: LoopFindings, cores: int) -> int:
    """The number of cores, and so of workers, that loading would get; 0 if no time was measured.

    The cores are divided in proportion to the CPU time that loading and the step take. Loading and
    the step get one core or more each.
    """
    load = found.load_cores * sum(
        found.shares[part].value for part in LOADING if part in found.shares
    )
    step = found.step_cores * found.shares[Part.STEP].value
    if load + step <= 0:
        return 0
    most = min(cores - 1, found.facts["most_workers"] or cores)
    return max(1, min(most, round(cores * load / (load + step))))


def find_prediction(found: LoopFindings, change: Change) -> float | None:
    """The predicted gain of the change, or of its first setting alone, as a share of the time.

    None if no gain is predicted.
    """
    what_if = find_what_if(found, change)
    return what_if.gain if what_if else None


def find_what_if(found: LoopFindings, change: Change) -> LoopWhatIf | None:
    """The prediction for the change, or for its first setting alone; None if there is none."""
    if change.is_fastloader:
        return next((each for each in found.what_ifs if each.change.is_fastloader), None)
    # The model predicts nothing for torch's threads.
    if change.torch_threads is not None:
        return None
    for settings in (change.settings, dict([*change.settings.items()][:1])):
        for each in found.what_ifs:
            if each.change.settings == settings:
                return each
    return None
