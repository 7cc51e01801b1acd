"""python -m fastloop.prepare dataset=… [loader=…]: fetch or make the data, write every store
ahead."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fastloop.config import Composed, compose_all
from fastloop.files import remove_unused

if TYPE_CHECKING:
    from fastloop.types import Prepared


def main() -> None:
    """Prepare for the loaders named on the command line, or for all of them."""
    if not any(argument.startswith(("loader=", "loader._target_=")) for argument in sys.argv[1:]):
        sys.argv += ["-m", "loader=glob(*)"]
    composed = compose_all(_prepare_all)
    sys.exit(_prepare_all([one for one in composed if not one.is_done]))


def _prepare_all(composed: Sequence[Composed]) -> int:
    """The exit status of preparing for all of these, each dataset and store once."""
    from fastloop.prepared import prepare
    from fastloop.types import JobFailed

    done: set[str] = set()
    failed = 0
    for one in composed:
        remove_unused(one.sweep_folder)
        dataset, store = one.job.dataset, one.job.loader.store
        if (key := repr((dataset, store, one.job.collate.tolerant))) in done:
            continue
        done.add(key)
        try:
            print(_told(one.launcher.call(prepare, dataset, store, one.job.collate.tolerant)))
        except JobFailed as failure:
            whose = f"{one.choices['dataset']}, loader {one.choices['loader']}"
            print(f"{whose}: {failure.reason}", file=sys.stderr)
            # One of many may lack its library, as in a sweep; the only one may not.
            if len(composed) == 1 or not failure.reason.startswith("unsupported"):
                failed = 1
    return failed


def _told(prepared: Prepared) -> str:
    size = f"{prepared.num_samples:,} samples, {prepared.disk_mib:.1f} MiB"
    return f"{prepared.label}: {size}, written in {prepared.seconds:.1f} s: {prepared.folder}"


if __name__ == "__main__":
    main()
