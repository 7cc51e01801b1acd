"""Python processes in which, as in their children, some libraries can't be imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from options import REPOSITORY

RUNTIME_ONLY = ("hydra", "omegaconf", "mlflow")
"""Libraries that `make gpu` must not need."""

NO_PLUGINS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
"""pytest would load Hydra's plugin, whose metadata are still installed."""

SITE_CUSTOMIZE = """
import sys
from importlib.machinery import PathFinder


class Present(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] in {names}:
            return None
        return super().find_spec(name, path, target)


sys.meta_path = [Present if finder is PathFinder else finder for finder in sys.meta_path]
"""


def run_without(
    names: tuple[str, ...], folder: Path, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run `python <arguments>` in a process in which these libraries are not installed.

    Python imports sitecustomize in every process, also in those of a forkserver.
    """
    site = folder / "site"
    site.mkdir(parents=True, exist_ok=True)
    (site / "sitecustomize.py").write_text(SITE_CUSTOMIZE.format(names=names))
    paths = [str(site), str(REPOSITORY), str(REPOSITORY / "tests")]
    return subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), **NO_PLUGINS} | environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
