"""Lines that name the user's own code: what is wrong is told in one line, before anything is
imported, and arguments need no plus."""

from __future__ import annotations

import pytest
from commands import results, run_fastloop, spawn_fastloop

pytestmark = pytest.mark.slow
SHORT = ("epochs=1", "trials=1", "benchmark=traversal", "tracker=none", "report=false")
SHORT = (*SHORT, "min_window_s=0")
CODE = """
from pathlib import Path

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset, default_collate

Path("imported").touch()


class Squares(Dataset):
    def __init__(self, count: int = 40, root: str = "."):
        self.count, self.root = count, root

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.full((3,), float(index)), index % 4


class Folder(Squares):
    def __init__(self, root):
        super().__init__(root=root)


class Clips(Squares):
    def __getitem__(self, index):
        return {"sound": torch.full((3 + index % 5,), float(index)), "label": index % 4}


class Words(Squares):
    def __getitem__(self, index):
        return "word " * (index + 1), index % 4


def collate(samples):
    return default_collate(samples)


def lengths(samples):
    return torch.tensor([len(text) for text, _ in samples]), torch.tensor([y for _, y in samples])


def make_loader(batch_size=8):
    return torch.utils.data.DataLoader(Squares(), batch_size)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("own")
    (path / "mine.py").write_text(CODE)
    return path


WRONG = [
    (
        "dataset=mien.Squares",
        "dataset._target_=mien.Squares: there is no module mien; did you mean mine.Squares?",
    ),
    (
        "dataset._target_=mine.Square",
        "dataset._target_=mine.Square: the module mine has no Square; did you mean mine.Squares?",
    ),
    (
        "dataset=mine.Squares +dataset.cuont=5",
        "dataset.cuont=5: mine.Squares has no argument cuont; did you mean dataset.count? "
        "allowed: dataset.count, dataset.root",
    ),
    (
        "dataset=mine.Squares dataset.cuont=5",
        "dataset.cuont=5: mine.Squares has no argument cuont; did you mean dataset.count? ",
    ),
    (
        "dataset=mine.Folder",
        "dataset.root: mine.Folder has no default for it; add dataset.root=<value>",
    ),
    (
        "dataset=custom dataset.target=mine.Suqares",
        "dataset.target=mine.Suqares: the module mine has no Suqares; did you mean mine.Squares?",
    ),
    (
        "collate=mine.colate",
        "collate._target_=mine.colate: the module mine has no colate; did you mean mine.collate?",
    ),
    (
        "loader=mine.make_loader loader.bacth_size=3",
        "loader.bacth_size=3: mine.make_loader has no argument bacth_size; "
        "did you mean loader.batch_size? ",
    ),
    (
        "-m dataset=digits,mine.Square trials=1,2",
        "dataset._target_=mine.Square: the module mine has no Square; did you mean mine.Squares?",
    ),
    ("+loader.foo=1", "loader.foo=1: there is no such setting; loader=raw has no settings of its"),
    (
        "loader=fastloop +loader.foo=1",
        "loader.foo=1: there is no such setting; allowed with loader=fastloop: loader.in_memory, ",
    ),
    (
        "loader=fastloop +loader.store.foo=1",
        "loader.store.foo=1: there is no such setting; allowed with store@loader.store=npy: ",
    ),
    ("+dataset.x=1", "dataset.x=1: there is no such setting; dataset=digits has no settings of"),
    ("+foo=1", "foo=1: there is no such setting; allowed: what `fastloop list settings`"),
    ("+hydra.nope=1", "hydra.nope=1: there is no such setting; allowed: what `fastloop run --cfg"),
    ("++hydra.job.nope=1", "hydra.job.nope=1: there is no such setting; allowed: what `fastloop"),
]


@pytest.mark.parametrize(("line", "message"), WRONG, ids=[each[0] for each in WRONG])
def test_wrong_name_or_argument_is_one_line_before_anything_is_imported(folder, line, message):
    # A new interpreter prints the plan before it imports torch, which a fork has done already.
    process = spawn_fastloop(*line.split(), cwd=folder)
    assert process.returncode == 1
    assert process.stdout == ""
    (told,) = process.stderr.splitlines()
    assert told.startswith(message)
    assert sorted(each.name for each in folder.iterdir()) == ["mine.py"]


def run_short(*overrides: str, folder, cwd):
    (cwd / "mine.py").write_text((folder / "mine.py").read_text())
    return run_fastloop(*overrides, *SHORT, cwd=cwd)


@pytest.mark.parametrize("setting", ["dataset.count=12", "+dataset.count=12", "++dataset.count=12"])
def test_argument_of_an_own_dataset_needs_no_plus(folder, tmp_path, setting):
    process = run_short("dataset=mine.Squares", setting, folder=folder, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert [result.num_samples for result in results(tmp_path)] == [12]


@pytest.mark.heavy
def test_argument_belongs_to_the_own_dataset_of_a_sweep(folder, tmp_path):
    line = ("-m", "dataset=digits,mine.Squares", "dataset.count=12", "dataset.version=2")
    process = run_short(*line, folder=folder, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert "dataset.count concerns 1 of 2 jobs" in process.stderr
    own = [result for result in results(tmp_path) if result.dataset == "Squares"]
    assert [result.num_samples for result in own] == [12]


LAZY = """
def attach(package, names):
    def load(name):
        import importlib
        if name in names:
            return getattr(importlib.import_module(f"{package}.{names[name]}"), name)
        raise AttributeError(name)
    return load, lambda: list(names), list(names)
__getattr__, __dir__, __all__ = attach(__name__, {"Squares": "mine"})
"""
OPTION = """
from mine import Squares


class Option:
    label, num_classes, uint8_scale = "Squares", 4, None

    def __init__(self, count, name):
        self.count, self.name = count, name

    def fetch(self):
        return f"{self.name}{self.count}"

    def open(self):
        return Squares(self.count)
"""


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("dataset=src.data.mine.Squares", 40),
        ("dataset=lazy.Squares", 40),
        ("dataset=option.Option dataset._args_=[12,a]", 12),
    ],
)
def test_code_in_plain_folders_lazy_packages_and_arguments_by_position(
    folder, tmp_path, line, count
):
    # folders without __init__.py
    (tmp_path / "src/data").mkdir(parents=True)
    (tmp_path / "src/data/mine.py").write_text(CODE)
    (tmp_path / "lazy").mkdir()
    (tmp_path / "lazy/mine.py").write_text(CODE)
    (tmp_path / "lazy/__init__.py").write_text(LAZY)
    (tmp_path / "option.py").write_text(OPTION)
    process = run_short(*line.split(), folder=folder, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert [result.num_samples for result in results(tmp_path)] == [count]


def test_settings_of_hydra_may_have_a_plus(folder, tmp_path):
    line = ("+hydra.job.env_set.OWN=1", "++hydra.job.chdir=false", "dataset=mine.Squares")
    process = run_short(*line, folder=folder, cwd=tmp_path)
    assert process.returncode == 0, process.stderr


@pytest.mark.parametrize(
    "overrides",
    [
        ("dataset=mine.Clips", "collate=pad"),
        pytest.param(
            ("dataset=mine.Clips", "collate=pad", "order=buckets"), marks=pytest.mark.heavy
        ),
        ("dataset=mine.Words", "collate=mine.lengths"),
        ("dataset=mine.Squares", "collate=mine.collate"),
    ],
    ids=" ".join,
)
def test_collate_of_samples_ranks_fastloader_beside_dataloader(folder, tmp_path, overrides):
    line = ("-m", "loader=raw,fastloop", *overrides, "batch_size=8")
    process = run_short(*line, folder=folder, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert [result.status for result in results(tmp_path)] == ["FINISHED", "FINISHED"]


@pytest.mark.parametrize(
    ("dataset", "facts"),
    [
        (
            "mine.Words",
            ("samples hold str; only tensors,", "collate=<module>.<function>", "loader=raw"),
        ),
        (
            "mine.Clips",
            ("samples differ: 0 is {", "collate=pad benchmark=trav"),
        ),
    ],
)
def test_samples_that_no_loader_takes_are_told_with_the_remedy(folder, tmp_path, dataset, facts):
    process = run_short(f"dataset={dataset}", folder=folder, cwd=tmp_path)
    assert process.returncode == 1
    *_, message = process.stderr.splitlines()
    assert message.partition(": ")[0].endswith(f"dataset={dataset}")
    assert [fact for fact in facts if fact not in message] == []
