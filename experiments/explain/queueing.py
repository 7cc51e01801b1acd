"""What must come out: waits of a loop whose batches take known times, without contention."""

from collections.abc import Sequence


def epoch_seconds(
    loads: Sequence[float], step_s: float, workers: int, prefetch: int = 2, start_s: float = 0.0
) -> float:
    """Seconds of an epoch whose k-th batch takes loads[k], as torch's DataLoader deals them out.

    start_s: time of each worker before its first batch; without workers, of the loop.
    """
    if not workers:
        return start_s + sum(loads) + len(loads) * step_s
    free_s = [start_s] * workers  # when each worker may begin its next batch
    taken_s: list[float] = []
    end_s = 0.0
    for number, load_s in enumerate(loads):
        ahead = number - workers * prefetch  # taking this batch sends the index of the present one
        begin_s = max(free_s[number % workers], taken_s[ahead] if ahead >= 0 else 0.0)
        free_s[number % workers] = begin_s + load_s
        taken_s.append(max(end_s, free_s[number % workers]))
        end_s = taken_s[-1] + step_s
    return end_s
