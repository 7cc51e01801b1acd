"""Imported by multiprocessing's forkserver, last of what it preloads, and by nothing else.

Importing it ties the server to the command, and notes what was imported before: multiprocessing
skips silently over a preload that it can't import, and each trial would take a second to start.
"""

from __future__ import annotations

import os
import sys

from fastloop.lifeline import tie

IMPORTED_BY = os.getpid()
PRELOADED = frozenset(sys.modules)

tie()
