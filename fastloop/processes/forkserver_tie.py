"""The first module that multiprocessing's forkserver preloads; nothing else imports it.

Importing it makes the server end with the command; if the command has ended already, the server
ends at once. It is imported first because the other imports take seconds: if the command were
killed during them, the server would be left behind.
"""

from __future__ import annotations

import os

from fastloop.processes.parent_death import FORKSERVER_OWNER, die_with_parent

die_with_parent()
if os.environ.get(FORKSERVER_OWNER) != str(os.getppid()):
    os._exit(1)
