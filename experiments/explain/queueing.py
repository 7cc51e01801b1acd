"""The epoch time of a loop with known loading times, computed for a machine with enough cores."""

from collections.abc import Sequence


def epoch_seconds(
    loads: Sequence[float], step_s: float, workers: int, prefetch: int = 2, start_s: float = 0.0
) -> float:
    """Seconds of an epoch of which batch k takes loads[k] to load, with torch's order of workers.

    start_s: seconds of each worker before its first batch; without workers, of the loop.
    """
    if not workers:
        return start_s + sum(loads) + len(loads) * step_s
    # The time at which each worker may begin its next batch.
    free_s = [start_s] * workers
    taken_s: list[float] = []
    end_s = 0.0
    for number, load_s in enumerate(loads):
        # The index of this batch is sent when the batch `ahead` is taken.
        ahead = number - workers * prefetch
        begin_s = max(free_s[number % workers], taken_s[ahead] if ahead >= 0 else 0.0)
        free_s[number % workers] = begin_s + load_s
        taken_s.append(max(end_s, free_s[number % workers]))
        end_s = taken_s[-1] + step_s
    return end_s
