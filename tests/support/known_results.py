"""Results with known values."""

from __future__ import annotations

from fastloop.core.result import Measurement, Result, Trial


def result_of(seconds: list[float], samples: int, limit: float) -> Result:
    trials = [
        Trial(
            number=number,
            seed=0,
            torch_threads=1,
            multiprocessing_context=None,
            load_average=None,
            benchmarks={
                "traversal": Measurement(
                    start_ns=0,
                    stop_ns=int(window_s * 1e9),
                    epochs=5,
                    samples=samples,
                    limit_samples_per_s=limit,
                )
            },
        )
        for number, window_s in enumerate(seconds)
    ]
    return Result(
        name="a b", loader="a", dataset="b", params={}, tags={}, trials=trials, sample_nbytes=8
    )
