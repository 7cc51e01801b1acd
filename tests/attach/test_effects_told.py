"""Effects of a script that are told before it runs again."""

from __future__ import annotations

import os

from fastloop.explain.attach.effects import DESCRIBED


def test_file_that_is_written_and_renamed_is_told_by_its_last_name():
    """As a checkpoint is written; both names lie outside of the working folder."""
    lines = DESCRIBED["os.rename"]("/data/last.pt.tmp", "/data/last.pt", -1, -1)
    assert lines == "removes /data/last.pt.tmp\nwrites /data/last.pt"
    assert DESCRIBED["os.rename"](f"{os.devnull}/a", f"{os.devnull}/b", -1, -1) == ""
