"""Progress bars of Python calls: on a terminal, and as widgets in a notebook; none elsewhere."""

from __future__ import annotations

import sys
from typing import Any

from tqdm import tqdm
from tqdm.auto import tqdm as auto_tqdm
from tqdm.autonotebook import tqdm as notebook_tqdm  # without its warning, after tqdm.auto


def in_notebook() -> bool:
    """True if tqdm draws widgets."""
    return notebook_tqdm is not tqdm


def shows_bars() -> bool:
    """True if someone may watch a bar."""
    return in_notebook() or sys.stderr.isatty()


def sample_bar(total: int | None, label: str) -> Any:
    """A bar of samples, to be used as a context; work of less than a second shows no bar.

    total: number of samples; None: unknown. label: the text before the bar.
    """
    return auto_tqdm(
        total=total, desc=label, unit=" samples", leave=False, delay=1, disable=not shows_bars()
    )
