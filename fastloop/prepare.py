"""python -m fastloop.prepare dataset=… [loader=…]: fetch or make the data, write every store
ahead."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from fastloop.config import compose_all, remove_unused

if TYPE_CHECKING:
    from fastloop.types import Prepared


def main() -> None:
    """Prepare for the loaders named on the command line, or for all of them."""
    if not any(argument.startswith("loader=") for argument in sys.argv[1:]):
        sys.argv += ["-m", "loader=glob(*)"]
    composed = compose_all()
    failed = 0
    if composed:
        from fastloop.prepared import prepare
        from fastloop.types import JobFailed

        done: dict[str, None] = {}
        for one in composed:
            remove_unused(one.sweep_folder)
            dataset, store = one.job.dataset, one.job.loader.store
            if repr((dataset, store)) in done:
                continue
            done[repr((dataset, store))] = None
            try:
                prepared = one.launcher.call(prepare, dataset, store)
            except JobFailed as failure:
                print(
                    f"{one.choices['dataset']}, loader {one.choices['loader']}: {failure.reason}",
                    file=sys.stderr,
                )
                failed = 1
            else:
                print(_told(prepared))
    sys.exit(failed)


def _told(prepared: Prepared) -> str:
    size = f"{prepared.num_samples:,} samples, {prepared.disk_mib:.1f} MiB"
    return f"{prepared.label}: {size}, written in {prepared.seconds:.1f} s: {prepared.folder}"


if __name__ == "__main__":
    main()
