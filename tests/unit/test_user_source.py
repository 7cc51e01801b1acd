"""Names and arguments of the user's code, read from its text, are those that the import finds."""

from __future__ import annotations

import importlib
import sys

import pytest

from fastloop.core.user_code import parameters_of
from fastloop.core.user_source import read_parameters

MODULE = '''
"""Opens a file, which a command would see if it were imported."""

import contextlib
import dataclasses
import importlib.util as tools
from dataclasses import dataclass, field
from pathlib import Path as Folder
from typing import ClassVar

import torch
import torch.utils.data as data
from torch import nn
from torch.utils.data import Dataset, IterableDataset

with contextlib.suppress(OSError):
    Folder(__file__).with_suffix(".imported").touch()

LOADER = [torch.zeros(2)]
try:
    import absent_library
except ImportError:
    absent_library = None


class Plain(Dataset):
    pass


class Typed(Dataset[int]):
    size: ClassVar[int] = 3


class OfTorch(torch.utils.data.Dataset):
    pass


class OfModule(data.IterableDataset):
    pass


class Rows(Dataset):
    def __init__(self, root, count=3, *, scale=1.0, kind):
        self.root = root


class Inherits(Rows):
    def __len__(self):
        return 3


class Any(Rows):
    def __init__(self, root=".", **settings):
        super().__init__(root)


class Mixed(Rows, IterableDataset):
    pass


class Net(nn.Module):
    pass


class Made(Dataset):
    def __new__(cls, count):
        return super().__new__(cls)


@dataclass(frozen=True)
class Fields:
    root: str
    label: ClassVar[str] = "fields"
    count: int = 3
    names: list = dataclasses.field(default_factory=list)


@dataclass
class Hidden(Dataset):
    root: str
    length: int = field(init=False)


class WithDecorator(Dataset):
    @torch.no_grad()
    def __init__(self, root):
        pass


if torch.__version__:

    class Conditional(Dataset):
        def __init__(self, count):
            self.count = count


def function(samples, label=0, *, other=None):
    return samples


def anything(*samples, **settings):
    return samples


def positional(first, /, second=1):
    return first


@torch.no_grad()
def with_decorator(samples):
    return samples


def make_global():
    global later
    later = 3


for loop_name in range(2):
    walrus = (inner := loop_name)
a_tuple, (nested, *rest) = 1, (2, 3)
'''
PACKAGE = {
    "__init__.py": "from .rows import Rows as Table\nfrom .deep import *\nfrom . import rows\n",
    "rows.py": "from .deep.far import Far\nclass Rows:\n    def __init__(self, path): ...\n",
    "other.py": "class Other:\n    def __init__(self, *, kind='a'): ...\n",
    "deep/__init__.py": "from .far import Far\nfrom ..other import Other\nname = 3\n",
    "deep/far.py": "class Far:\n    def __init__(self, size=2): ...\n",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with a module and a package, which are forgotten afterwards."""
    (tmp_path / "mine_read.py").write_text(MODULE)
    for name, text in PACKAGE.items():
        (tmp_path / "pack_read" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "pack_read" / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [each for each in sys.modules if each.partition(".")[0].endswith("_read")]:
        del sys.modules[name]


KNOWN = [
    *("Plain", "Typed", "OfTorch", "Rows", "Inherits", "Any", "Fields"),
    *("Conditional", "function", "anything"),
]
UNKNOWN = [
    *(
        "OfModule",
        "Mixed",
        "Net",
        "Made",
        "Hidden",
        "WithDecorator",
        "positional",
        "with_decorator",
    ),
    *("LOADER", "absent_library", "Dataset.__len__", "later", "loop_name", "walrus", "inner"),
    *("a_tuple", "nested", "rest", "torch", "nn", "Folder", "tools", "data"),
]


def test_names_and_arguments_in_the_text_are_those_of_the_import(folder):
    read = {name: read_parameters(f"mine_read.{name}") for name in (*KNOWN, *UNKNOWN)}
    assert [name for name in UNKNOWN if read[name]] == []
    assert not (folder / "mine_read.imported").exists()
    importlib.import_module("mine_read")
    assert (folder / "mine_read.imported").exists()
    for name in KNOWN:
        assert read[name] == parameters_of(f"mine_read.{name}"), name
    # once it is imported, its text no longer counts
    assert read_parameters("mine_read.Rows") is None


@pytest.mark.parametrize(
    "name", ["Table", "rows.Rows", "deep.Far", "deep.far.Far", "rows.Far", "deep.Other"]
)
def test_names_that_a_package_imports_are_followed(folder, name):
    read = read_parameters(f"pack_read.{name}")
    assert read == parameters_of(f"pack_read.{name}")
    assert read is not None


def test_name_that_a_star_may_bring_is_left_to_the_import(folder):
    assert read_parameters("pack_read.name") is None
    assert read_parameters("pack_read.nope") is None


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("mine_raed.Rows", "there is no module mine_raed; did you mean mine_read.Rows?"),
        ("nope.Rows", "there is no module nope; the working folder has mine_read, pack_read"),
        ("mine_read.Row", "the module mine_read has no Row; did you mean mine_read.Rows?"),
        ("mine_read.fields", "the module mine_read has no fields; did you mean mine_read.Fields?"),
        ("mine_read.Row.make", "no Row; did you mean mine_read.Rows.make?"),
        ("pack_read.deep.Quux", "the module pack_read.deep has no Quux; it has far"),
        ("pack_read.deep.fra.Far", "no fra; did you mean pack_read.deep.far.Far?"),
    ],
)
def test_name_that_does_not_exist_is_told_with_a_similar_one(folder, path, message):
    with pytest.raises(ValueError, match=r"^there is no module|^the module") as error:
        read_parameters(path)
    assert message in str(error.value)


@pytest.mark.parametrize(
    "text", ["def __getattr__(name): ...", "globals()['A'] = 3", "import sys\nsys.modules['x'] = 3"]
)
def test_module_that_may_have_further_names_is_left_to_the_import(folder, text):
    (folder / "open_read.py").write_text(text)
    assert read_parameters("open_read.Nope") is None


def test_syntax_error_is_told_with_its_place(folder):
    (folder / "wrong_read.py").write_text("import torch\nclass A(:\n")
    with pytest.raises(ValueError, match=r"^SyntaxError: .*\(wrong_read\.py, line 2\)$"):
        read_parameters("wrong_read.A")


def test_module_without_text_is_left_to_the_import(folder):
    assert read_parameters("_heapq.nope") is None
