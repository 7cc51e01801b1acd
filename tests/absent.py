"""Python processes, and all that they start, in which some libraries can't be imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from options import REPOSITORY

RUNTIME_ONLY = ("hydra", "omegaconf", "mlflow")
"""What a machine with a GPU need not have."""

PLAIN = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
"""Hydra's own plugin would be looked for, because its metadata are still there."""

FINDER = """
import sys
from importlib.machinery import PathFinder


class Present(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] in {names}:
            return None
        return super().find_spec(name, path, target)


sys.meta_path = [Present if one is PathFinder else one for one in sys.meta_path]
"""


def without(
    names: tuple[str, ...], folder: Path, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """The finished process of `python <arguments>`: to it these libraries are not installed.

    Python imports sitecustomize in every process, those of a forkserver included.
    """
    site = folder / "site"
    site.mkdir(parents=True, exist_ok=True)
    (site / "sitecustomize.py").write_text(FINDER.format(names=names))
    paths = [str(site), str(REPOSITORY), str(REPOSITORY / "tests")]
    paths += [str(REPOSITORY / "experiments")]
    return subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), **PLAIN} | environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
