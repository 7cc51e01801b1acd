"""Names and arguments of the user's code, read from its text, are those that the import finds."""

from __future__ import annotations

import importlib
import sys

import pytest

from fastloop.config.messages import ConfigError
from fastloop.config.user_options import check_own_code
from fastloop.core.user_code import parameters_of
from fastloop.core.user_source import _read_parameters, read_parameters

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
    "__init__.py": "from .deep import *\nfrom .rows import Rows as Table\nfrom . import rows\n",
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
    *("Net", "function", "anything"),
]
UNKNOWN = [
    *(
        "OfModule",
        "Mixed",
        "Conditional",
        "Made",
        "Hidden",
        "WithDecorator",
        "positional",
        "with_decorator",
    ),
    *("LOADER", "absent_library", "Dataset.__len__", "later", "loop_name", "walrus", "inner"),
    *("a_tuple", "nested", "rest", "torch", "nn", "Folder", "tools", "data"),
]


def read_text_of(path):
    """What the reader itself says, without the function around it that hides its failures."""
    return _read_parameters(path, 0)


def test_names_and_arguments_in_the_text_are_those_of_the_import(folder):
    read = {name: read_text_of(f"mine_read.{name}") for name in (*KNOWN, *UNKNOWN)}
    assert [name for name in UNKNOWN if read[name]] == []
    assert not (folder / "mine_read.imported").exists()
    importlib.import_module("mine_read")
    assert (folder / "mine_read.imported").exists()
    for name in KNOWN:
        assert read[name] == parameters_of(f"mine_read.{name}"), name
    # once it is imported, its text no longer counts
    assert read_text_of("mine_read.Rows") is None


@pytest.mark.parametrize(
    "name", ["Table", "rows.Rows", "deep.Far", "deep.far.Far", "rows.Far", "deep.Other"]
)
def test_names_that_a_package_imports_are_followed(folder, name):
    read = read_parameters(f"pack_read.{name}")
    assert read == parameters_of(f"pack_read.{name}")
    assert read is not None


def test_name_that_a_star_may_bring_is_left_to_the_import(folder):
    assert read_text_of("pack_read.name") is None
    assert read_text_of("pack_read.nope") is None


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


OF_COUNT = "class Rows:\n    def __init__(self, count=3): ...\n"
"""A class whose constructor another one with the argument `size` replaces, in ways of ODD."""
OF_SIZE = "def of_size(self, size): ...\n"
TABLE = "TABLE = {'Rows': 'nested_read.rows'}\n"
ATTACH = """
def attach(package, table):
    import importlib
    def get(name):
        if name in table:
            return getattr(importlib.import_module(table[name]), name)
        raise AttributeError(name)
    return get, lambda: list(table), list(table)
"""
ODD = {
    "class without __init__": "class Rows:\n    pass\n" + OF_SIZE + "Rows.__init__ = of_size\n",
    "constructor assigned": OF_COUNT + OF_SIZE + "Rows.__init__ = of_size\n",
    "by a second name": OF_COUNT + OF_SIZE + "Same = Rows\nSame.__init__ = of_size\n",
    "in a loop": OF_COUNT + OF_SIZE + "for each in [Rows]:\n    each.__init__ = of_size\n",
    "by setattr": OF_COUNT + OF_SIZE + "setattr(Rows, '__init__', of_size)\n",
    "by type.__setattr__": OF_COUNT + OF_SIZE + "type.__setattr__(Rows, '__init__', of_size)\n",
    "in a function": OF_COUNT
    + "def of_size(self, size): ...\ndef change(cls):\n    cls.__init__ = of_size\nchange(Rows)\n",
    "by another module": OF_COUNT + "from change_read import change\nchange(Rows)\n",
    "by a list": OF_COUNT + "from change_read import change_all\nchange_all([Rows])\n",
    "by a decorator": "from change_read import change\n@change\n" + OF_COUNT,
    "by the class itself": "from change_read import change\nclass Rows:\n"
    "    def __init__(self, count): ...\n    @classmethod\n    def turn(cls): change(cls)\n"
    "Rows.turn()\n",
    "of the base": OF_COUNT.replace("Rows", "Base")
    + OF_SIZE
    + "class Rows(Base): ...\nBase.__init__ = of_size\n",
    "by the package's __init__": "from .inner import Rows",
    "defaults assigned": "def Rows(size): ...\nRows.__defaults__ = (3,)\n",
    "signature assigned": "import inspect\ndef Rows(*args, **kwargs): ...\n"
    "Rows.__signature__ = inspect.signature(lambda size=3: 0)\n",
    "field under if": "from dataclasses import dataclass\n@dataclass\nclass Rows:\n"
    "    if True:\n        size: int = 3\n",
    "default assigned": "from dataclasses import dataclass\n@dataclass\nclass Rows:\n"
    "    size: int\n    size = 3\n",
    "second name of ClassVar": "from dataclasses import dataclass\n"
    "from typing import ClassVar as Shared\n@dataclass\nclass Rows:\n"
    "    count: Shared\n    size: int = 3\n",
    "dataclass without init": "from dataclasses import dataclass\nHOW = {'init': False}\n"
    "@dataclass(**HOW)\nclass Rows:\n    size: int\n",
    "dataclass of another": "def dataclass(cls):\n    return lambda size=3: cls\n@dataclass\n"
    "class Rows:\n    count: int\n",
    "metaclass": "class Meta(type):\n"
    "    def __call__(cls, size=3): return type.__call__(cls, size)\n"
    "class Rows(metaclass=Meta):\n    def __init__(self, count): ...\n",
    "metaclass of the base": "class Meta(type):\n"
    "    def __call__(cls, size=3): return type.__call__(cls, size)\n"
    "class Base(metaclass=Meta): ...\nclass Rows(Base):\n    def __init__(self, count): ...\n",
    "base changes its subclasses": "from change_read import change\nclass Base:\n"
    "    def __init_subclass__(cls): change(cls)\nclass Rows(Base):\n"
    "    def __init__(self, count): ...\n",
    "__new__ of the base": "class Base:\n    def __new__(cls, size=3): ...\n"
    "class Rows(Base): ...\n",
    "several bases": "class A:\n    def __init__(self, size=3): ...\nclass B: ...\n"
    "class Rows(B, A): ...\n",
    "base by another name": "class A:\n    def __init__(self, size=3): ...\nBase = A\n"
    "class Rows(Base): ...\n",
    "if": "if True:\n    def Rows(size=3): ...\nelse:\n    def Rows(count): ...\n",
    "try": "try:\n    import absent_read\n    def Rows(count): ...\nexcept ImportError:\n"
    "    def Rows(size=3): ...\n",
    "try around a def": "def Rows(count): ...\ntry:\n"
    "    def Rows(size=3): ...\nfinally:\n    pass\n",
    "while": "while True:\n    def Rows(size=3): ...\n    break\n",
    "del": "def Rows(count): ...\ndel Rows\nfrom change_read import Rows\n",
    "star": "def Rows(count): ...\nfrom change_read import *\n",
    "star alone": "from change_read import *\n",
    "exec": "exec('def Rows(size=3): ...')\n",
    "exec over a def": "def Rows(count): ...\nexec('def Rows(size=3): ...')\n",
    "globals": "globals()['Rows'] = lambda size=3: 0\n",
    "globals of builtins": "import builtins\n"
    "builtins.exec('Rows = lambda size=3: 0', builtins.globals())\n",
    "global": "def make():\n    global Rows\n    def Rows(size=3): ...\nmake()\n",
    "sys.modules": "import sys\nclass Rest:\n    @staticmethod\n    def Rows(size=3): ...\n"
    "sys.modules[__name__] = Rest\n",
    "sys by another name": "import sys as system\nclass Rest:\n    @staticmethod\n"
    "    def Rows(size=3): ...\nsystem.modules[__name__] = Rest\n",
    "told its name": "from change_read import fill\nfill(__name__)\n",
    "__getattr__": "def __getattr__(name):\n    if name != 'Rows':\n"
    "        raise AttributeError(name)\n    return lambda size=3: 0\n",
    "__getattr__ imported": "from change_read import __getattr__\n",
    "__getattr__ of attach": ATTACH
    + TABLE
    + "__getattr__, __dir__, __all__ = attach(__name__, TABLE)\n",
    "__getattr__ by another name": "from change_read import get_rows as __getattr__\n",
    "type checking": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n"
    "    from count_read import Rows\nfrom change_read import __getattr__\n",
    "sys.path": "import sys\nfrom pathlib import Path\n"
    "sys.path.insert(0, str(Path(__file__).parents[1] / 'first'))\nfrom second_read import Rows\n",
    "absent module caught": "try:\n    from absent_read import Rows\nexcept ImportError:\n"
    "    def Rows(size=3): ...\n",
    "decorated function": "import functools\ndef add(f): return lambda size=3: 0\n@add\n"
    "def Rows(count): ...\n",
    "nested text": "Rows = lambda size=3: 0\nNUMBER = " + "+".join(["1"] * 900) + "\n",
}
CHANGE = """
import sys
def of_size(self, size): ...
def change(cls):
    cls.__init__ = of_size
    return cls
def change_all(many):
    for each in many: change(each)
def fill(name):
    sys.modules[name].Rows = Rows
def Rows(size=3): ...
def get_rows(name):
    if name != "Rows":
        raise AttributeError(name)
    return Rows
__getattr__ = get_rows
"""


@pytest.fixture
def odd_folder(folder):
    """A folder with the modules that those of ODD import."""
    files = {
        "change_read.py": CHANGE,
        "count_read.py": "def Rows(count): ...\n",
        "second_read.py": "def Rows(count): ...\n",
        "first/second_read.py": "def Rows(size=3): ...\n",
        "nested_read/rows.py": "class Rows:\n    def __init__(self, size=3): ...\n",
        "odd_read/inner.py": OF_COUNT,
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize("kind", ODD)
def test_odd_module_is_left_to_the_import(odd_folder, kind):
    (odd_folder / "odd_read" / "__init__.py").write_text(ODD[kind])
    path = "odd_read.Rows"
    if kind == "by the package's __init__":
        change = (
            "from change_read import of_size\nfrom .inner import Rows\nRows.__init__ = of_size\n"
        )
        (odd_folder / "odd_read" / "__init__.py").write_text(change)
        path = "odd_read.inner.Rows"
    # This text is nested too deeply for the reader, which the function around it hides.
    read = read_parameters if kind == "nested text" else read_text_of
    assert read(path) is None
    # The import works, and says otherwise than the text that comes first.
    imported = parameters_of(path)
    assert imported is None or "count" not in imported.names


def test_folders_without_init_are_read(folder):
    for name, text in {"photos.py": OF_COUNT, "__init__.py": ""}.items():
        (folder / "src_read/data/deep").mkdir(parents=True, exist_ok=True)
        (folder / "src_read/data/deep" / name).write_text(text)
    (folder / "src_read/data/photos.py").write_text(OF_COUNT)
    paths = ["src_read.data.photos.Rows", "src_read.data.deep.photos.Rows"]
    read = [read_parameters(path) for path in paths]
    assert read == [parameters_of(path) for path in paths]
    assert None not in read
    for name in [each for each in sys.modules if each.startswith("src_read")]:
        del sys.modules[name]
    with pytest.raises(ValueError, match=r"src_read\.data has no phoots; did you mean .*photos"):
        read_parameters("src_read.data.phoots.Rows")


@pytest.mark.parametrize("text", ["-" * 5000 + "1", "(" * 150 + ")" * 150, "a" + ".b" * 3000])
def test_deeply_nested_text_is_left_to_the_import(folder, text):
    (folder / "deep_read.py").write_text(f"VALUE = lambda a: {text}\n")
    assert read_parameters("deep_read.VALUE") is None


def test_error_of_a_finder_is_left_to_the_import(folder, monkeypatch):
    class Finder:
        @staticmethod
        def find_spec(name, path=None, target=None):
            raise KeyError(name)

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    assert read_parameters("pack_read.nope.Rows") is None
    assert read_parameters("nope_read.Rows") is None


def test_syntax_error_is_told_with_its_place(folder):
    (folder / "wrong_read.py").write_text("import torch\nclass A(:\n")
    with pytest.raises(ValueError, match=r"^SyntaxError: .*\(wrong_read\.py, line 2\)$"):
        read_parameters("wrong_read.A")


def test_module_without_text_is_left_to_the_import(folder):
    assert read_text_of("_heapq.nope") is None


@pytest.mark.parametrize("more", [{"_args_": ["data"]}, {"_partial_": True}], ids=str)
def test_arguments_that_hydra_passes_in_another_way_are_not_missing(folder, more):
    node = {"_target_": "pack_read.rows.Rows"}
    check_own_code([{"dataset": node | more}])
    with pytest.raises(ConfigError, match="has no argument pth"):
        check_own_code([{"dataset": node | more | {"pth": 1}}])
    with pytest.raises(ConfigError, match="has no default for it"):
        check_own_code([{"dataset": node}])
