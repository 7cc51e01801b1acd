"""What is done with a job in a fresh process: a timed trial, or a pass with instruments."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from fastloop.cache_state import Opened, bring_to, evict_together, opened
from fastloop.delivery import delivering, opening
from fastloop.digest import leaves_of
from fastloop.environment import cpu_seconds, describe, load_average
from fastloop.gate import check_data, num_delivered, placing
from fastloop.job import Job, check_support
from fastloop.lengths import told_lengths
from fastloop.limits import usable_cores
from fastloop.network import SYNCHRONIZED, evened
from fastloop.page_cache import total_mib
from fastloop.pairs import paired
from fastloop.plans import of_rank
from fastloop.profiling import marked, profiled, write_profile
from fastloop.protocols import Benchmark
from fastloop.ranks import gathered, is_grouped, local_world_size, rank, world_size
from fastloop.replays import held_batches, num_steps, replay_limit, step_seconds
from fastloop.result import Attribution, Measured, Trial
from fastloop.spans import Spans, Steps, now_ns, seconds_between, synchronize, wall_ms
from fastloop.transforms.none import NoTransform
from fastloop.types import BadData, Epochs, Leaves, Pair, Plan, Prepared, Setup, Tree
from fastloop.window import Consumer, drain, instrumented, may_be_unread, timed
from fastloop.yardstick import limit_rows_per_s

TRIAL_SEED_STRIDE = 10_000
"""Trials are this far apart, because orders take seed + epoch."""


def run_trial(job: Job, prepared: Prepared, number: int, asked_ns: int) -> Trial:
    """One trial: open, check the data, warm up and time each benchmark, check the data again.

    With cache=cold the loader is opened afresh before each window.

    asked_ns: when this process was asked for. Raises Invalid where the data is not the dataset's.
    """
    launch_s = seconds_between(asked_ns, now_ns())
    started_ms, load = wall_ms(), load_average()
    device, plan = _start(job, prepared, number)
    check = partial(_check_epoch, job, prepared, plan, device)
    with opened(opening(job, prepared, plan, device)) as loading:
        check(loading.epochs, job.epochs + 1)
        setup = _setup(job, prepared, plan.seed, device, loading.epochs)
        benchmarks = {
            name: _measure(job, benchmark, prepared, setup, loading)
            for name, benchmark in job.benchmark.items()
        }
        check(loading.epochs, job.epochs + 2)
    return Trial(
        number=number,
        seed=plan.seed,
        benchmarks=benchmarks,
        torch_threads=torch.get_num_threads(),
        multiprocessing_context=plan.multiprocessing_context,
        load_average=load,
        launch_s=launch_s,
        started_ms=started_ms,
        data_mib=total_mib(prepared.files) if prepared.files else None,
    )


def run_instrumented(job: Job, prepared: Prepared, name: str) -> Attribution:
    """Where one benchmark's time goes: one epoch with spans, and the price in CPU time.

    The epoch is warm; with cache=cold it is cold, as is the first batch.
    """
    device, plan = _start(job, prepared, 0)
    place = _stepped(job, prepared, device)
    torch.zeros(1, device=device)  # so that starting the device is not the loader's to pay
    synchronize(device)
    if job.cache == "cold":
        evict_together(prepared.files)
    opened_ns = now_ns()
    with opened(opening(job, prepared, plan, device)) as loading:
        first = iter(loading.epochs(job.epochs))
        place(next(first))
        synchronize(device)
        first_batch_s = seconds_between(opened_ns, now_ns())
        del first  # ending what it has started takes its time
        setup = _setup(job, prepared, plan.seed, device, loading.epochs)
        consume, _ = job.benchmark[name].start(place, setup)
        with evened(setup, _may_differ(job)):
            drain(loading.epochs, consume, job.epochs, device)
        spans, steps = Spans(), Steps(device)
        consume, _ = job.benchmark[name].start(steps.behind(spans.timed("place", place)), setup)
        bring_to(job.cache, prepared.files, loading)
        cpu_before = cpu_seconds()
        with evened(setup, _may_differ(job)):
            window = instrumented(loading.epochs, steps.around(consume), spans, device)
        cpu_s = cpu_seconds() - cpu_before
        on_cuda = device.type == "cuda" and job.benchmark[name].limit == "replay"
        step_s, own_step_s = None, None
        if SYNCHRONIZED in setup.kept:
            held = held_batches(loading.epochs(job.epochs), place)
            step_s, own_step_s = step_seconds(job.benchmark[name], setup, held)
    return Attribution(
        seconds=window.seconds,
        first_batch_s=first_batch_s,
        wait_s=spans.seconds("wait"),
        place_s=spans.seconds("place"),
        idle_s=max(0.0, window.seconds - steps.seconds()) if on_cuda else None,
        cpu_s=cpu_s,
        step_s=step_s,
        own_step_s=own_step_s,
    )


def run_profiled(job: Job, prepared: Prepared, name: str, folder: Path) -> None:
    """Write what torch.profiler sees of one benchmark's steps, see profiling.py.

    Its times are not the trials': the profiler itself takes part of them.
    """
    device, plan = _start(job, prepared, 0)
    place = _stepped(job, prepared, device)
    with opened(opening(job, prepared, plan, device)) as loading:
        setup = _setup(job, prepared, plan.seed, device, loading.epochs)
        consume, _ = job.benchmark[name].start(place, setup)
        with evened(setup, _may_differ(job)):
            drain(loading.epochs, consume, job.epochs, device)
        consume, _ = job.benchmark[name].start(marked("place", place), setup)
        with evened(setup, _may_differ(job)):
            profile = profiled(loading.epochs, consume, device)
    if rank() == 0:
        write_profile(profile, folder, name)


def _check_epoch(
    job: Job, prepared: Prepared, plan: Plan, device: torch.device, epochs: Epochs, epoch: int
) -> None:
    """check_data of what the step would receive, but for the transform: its figures are random."""
    deliver = placing(_delivered(job, prepared, device))
    if plan.transform is None:
        check_data(prepared, plan, map(deliver, epochs(epoch)), epoch, job.same_data)
        return
    with opening(job, prepared, replace(plan, transform=None), device)() as plain:
        check_data(prepared, plan, map(deliver, plain(epoch)), epoch, job.same_data)


def _start(job: Job, prepared: Prepared, number: int) -> tuple[torch.device, Plan]:
    device = check_support(job, world_size())
    if world_size() > local_world_size():
        _check_shared(prepared)
    if threads := job.torch_threads or _own_threads():
        torch.set_num_threads(threads)
    return device, _plan(job, prepared, job.seed + number * TRIAL_SEED_STRIDE)


def _check_shared(prepared: Prepared) -> None:
    """Raise BadData, naming the node, where what the first one has prepared is not on this one."""
    for path in (prepared.reference, prepared.folder, *prepared.files):
        if not path.exists():
            why = "every node reads the same folder by the same path, see FASTLOOP_OUTPUTS"
            raise BadData(f"{path}: not on node {describe()['host']}; {why}")


def _own_threads() -> int | None:
    """A rank's share of the node's cores; None, torch's own choice, without a group.

    torchrun sets OMP_NUM_THREADS=1, whatever the machine has, for a group of one too.
    """
    if not is_grouped() and "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    return max(1, usable_cores() // local_world_size())


def _plan(job: Job, prepared: Prepared, seed: int) -> Plan:
    """This rank's."""
    return of_rank(told_lengths(job.plan(seed), prepared), rank(), world_size())


def _may_differ(job: Job) -> bool:
    """Whether ranks may have different numbers of batches: nobody knows of a user's loader."""
    ours = type(job.loader).__module__.startswith("fastloop.loaders.")
    return job.collate.tolerant or not ours


def _delivered(job: Job, prepared: Prepared, device: torch.device) -> Consumer:
    """From a batch as the epochs give it to a whole one on the device: with device_prefetch it is
    that already."""
    return (lambda batch: batch) if job.device_prefetch else delivering(job, prepared, device)


def _stepped(job: Job, prepared: Prepared, device: torch.device) -> Consumer:
    """The same, to what the step gets."""
    deliver, transform = _delivered(job, prepared, device), job.transform.of_a_batch
    if isinstance(job.transform, NoTransform) or job.transform.where == "worker":
        return deliver
    return lambda batch: transform(deliver(batch))


def _setup(job: Job, prepared: Prepared, seed: int, device: torch.device, epochs: Epochs) -> Setup:
    batch = next(iter(epochs(job.epochs)))
    sample, pair = _sample(job, prepared, _stepped(job, prepared, device)(batch))
    return Setup(
        model=job.model,
        sample=sample,
        num_classes=prepared.num_classes,
        learning_rate=job.learning_rate,
        seed=seed,
        device=device,
        unread=device.type == "cpu" and may_be_unread(batch),
        execution=job.execution,
        precision=job.precision,
        pair=pair,
    )


def _sample(job: Job, prepared: Prepared, batch: Tree) -> tuple[Leaves, Pair]:
    """Leaves of a sample as the step gets it; where a model runs, of its input and its target, and
    what takes them out of a batch. Raises Unsupported where a benchmark can't use it."""

    def check(sample: Leaves) -> None:
        for one in job.benchmark.values():
            one.check(job.model, prepared.num_classes, sample)

    modelled = [name for name, one in job.benchmark.items() if one.limit == "replay"]
    if modelled:
        return paired(modelled[0], batch, check)
    sample = leaves_of(batch)
    check(sample)
    return sample, tuple


def _measure(
    job: Job, benchmark: Benchmark, prepared: Prepared, setup: Setup, loading: Opened
) -> Measured:
    """A warm-up epoch on a throwaway start, the bare window on a fresh one, the limit beside it."""
    place = _stepped(job, prepared, setup.device)
    consume, _ = benchmark.start(place, setup)
    with evened(setup, _may_differ(job)):
        drain(loading.epochs, consume, job.epochs, setup.device)
    consume, losses = benchmark.start(place, setup)
    cached_before, cached = bring_to(job.cache, prepared.files, loading)
    with evened(setup, _may_differ(job)):
        window = timed(loading.epochs, consume, job.epochs, setup.device)
    seconds = max(gathered(window.seconds))
    samples = num_delivered(prepared, _plan(job, prepared, setup.seed), job.epochs)
    if benchmark.limit == "gather":
        size = (prepared.num_samples, prepared.sample_nbytes, job.batch_size)
        limit = limit_rows_per_s(*size, setup.device, setup.unread, seconds)
    else:
        step_s = seconds * job.batch_size * world_size() / samples
        held = held_batches(loading.epochs(job.epochs), place, num_steps(step_s))
        limit = replay_limit(benchmark, setup, held)
    return Measured(
        start_ns=window.start_ns,
        stop_ns=window.stop_ns,
        epochs=job.epochs,
        samples=samples,
        limit_samples_per_s=limit,
        losses=_epoch_means(losses, job.epochs),
        cached_before=cached_before,
        cached_fraction=cached,
    )


def _epoch_means(losses: list[torch.Tensor], epochs: int) -> list[float]:
    # Split, not viewed: an epoch is a batch short where all of one was broken.
    parts = torch.stack(losses).tensor_split(epochs) if losses else ()
    return [float(part.mean()) for part in parts]
