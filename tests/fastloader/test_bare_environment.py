"""FastLoader in an environment that has torch and numpy, and what these need, but nothing else."""

from __future__ import annotations

import re
from importlib.metadata import distribution, packages_distributions

import pytest
from missing_libraries import run_without

PROGRAM = """
import fastloop, sys, torch
from fastloop import Blocks, FastLoader, converted, sample_seed

rows = torch.arange(60, dtype=torch.uint8).view(20, 3)

class Numbers(torch.utils.data.Dataset):
    def __len__(self): return 20
    def __getitem__(self, index): return torch.rand(1) + index

for source in (rows, (converted(rows), rows), Numbers(), [(1, 2)] * 5):
    for settings in ({}, {"shuffle": True, "num_threads": 2}, {"num_workers": 1}):
        assert list(fastloop.FastLoader(source, 3, **settings))
loader = FastLoader(rows, 3, Blocks(4))
state = loader.state_dict()
loader.load_state_dict(state)
print(*{name.partition(".")[0] for name in sys.modules})
"""


def needed_by(names: set[str]) -> set[str]:
    """These distributions and all that they require, by canonical names."""
    found: set[str] = set()
    while names:
        name = names.pop()
        found.add(name)
        requirements = distribution(name).requires or []
        for requirement in requirements:
            other = canonical(re.split(r"[^\w.-]", requirement)[0])
            if "extra ==" not in requirement and other not in found and is_installed(other):
                names.add(other)
    return found


def canonical(name: str) -> str:
    return name.lower().replace("_", "-")


def is_installed(name: str) -> bool:
    try:
        return bool(distribution(name))
    except ModuleNotFoundError:
        return False


@pytest.mark.heavy
def test_fastloader_works_where_only_torch_and_numpy_are_installed(tmp_path):
    needed = needed_by({"torch", "numpy"})
    absent = tuple(
        module
        for module, owners in packages_distributions().items()
        if not needed & set(map(canonical, owners)) and module not in ("fastloop", "_fastloop")
    )
    for name in ("mlflow", "hydra", "omegaconf", "scipy", "sklearn", "matplotlib", "pydantic"):
        assert name in absent
    process = run_without(absent, tmp_path, "-c", PROGRAM)
    assert process.returncode == 0, process.stderr
    assert not set(process.stdout.split()) & set(absent)
