"""The last module that multiprocessing's forkserver preloads; nothing else imports it.

Importing it ties the server to the command, and records which modules were imported before:
multiprocessing silently skips modules that it can't preload, and each trial would then take a
second longer to start.
"""

from __future__ import annotations

import os
import sys

from fastloop.processes.lifecycle import die_with_parent

IMPORTED_BY = os.getpid()
PRELOADED = frozenset(sys.modules)

die_with_parent()
