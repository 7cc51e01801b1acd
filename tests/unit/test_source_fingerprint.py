"""Fingerprints of the user's code, which tell whether trials may be pooled."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from fastloop.core.fingerprints import fingerprint
from fastloop.core.source_fingerprint import source_fingerprint
from fastloop.options.dataset.mydataset import MyDataset

FILES = {
    "mixed/__init__.py": "",
    "mixed/loader.py": "import os\nimport numpy\nfrom . import near\nfrom helper import DELAY\n"
    "class Load:\n    pass\n",
    "mixed/near.py": "def late():\n    from mixed.inner.deep import x\n",
    "mixed/inner/__init__.py": "",
    "mixed/inner/deep.py": "x = 1\n",
    "helper.py": "from other import *\nDELAY = 0.001\n",
    "other.py": "import helper\n",
    "unrelated.py": "",
}


@pytest.fixture
def own_code(tmp_path, monkeypatch):
    """A folder of modules, and an object of a class in one of them."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path, importlib.import_module("mixed.loader").Load()
    for name in sys.modules.keys() - before:
        del sys.modules[name]


@pytest.mark.parametrize("name", [name for name in FILES if name != "unrelated.py"])
def test_change_of_any_module_that_code_imports_changes_its_fingerprint(own_code, name):
    folder, loader = own_code
    before = source_fingerprint(loader)
    with (folder / name).open("a") as file:
        file.write("# changed\n")
    assert source_fingerprint(loader) != before
    assert "mixed.inner" not in sys.modules  # nothing is imported for it


def test_change_of_another_module_leaves_the_fingerprint(own_code):
    folder, loader = own_code
    before = source_fingerprint(loader)
    (folder / "unrelated.py").write_text("# changed\n")
    assert source_fingerprint(loader) == before


def test_libraries_of_another_environment_are_not_own_code(own_code, tmp_path, monkeypatch):
    folder, loader = own_code
    installed = tmp_path / "other" / "lib" / "python3" / "site-packages"
    (installed / "library").mkdir(parents=True)
    (installed / "library" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(installed)
    (folder / "other.py").write_text("import library\n")
    before = source_fingerprint(loader)
    (installed / "library" / "__init__.py").write_text("# changed\n")
    assert source_fingerprint(loader) == before


def test_import_beyond_the_top_of_a_package_is_passed_over(own_code):
    folder, loader = own_code
    (folder / "mixed" / "near.py").write_text("def late():\n    from ...nowhere import x\n")
    assert source_fingerprint(loader)


def test_code_of_a_target_that_is_a_method_of_a_class_counts(own_code):
    folder, _ = own_code
    wrapper = SimpleNamespace(target="mixed.loader.Load.__init__")
    before = source_fingerprint(wrapper)
    with (folder / "helper.py").open("a") as file:
        file.write("# changed\n")
    assert source_fingerprint(wrapper) != before


def test_code_may_have_another_encoding(own_code):
    folder, loader = own_code
    text = "# -*- coding: latin-1 -*-\nimport helper\nname = 'caf\xe9'\n"
    (folder / "other.py").write_bytes(text.encode("latin-1"))
    before = source_fingerprint(loader)
    (folder / "other.py").write_bytes(text.replace("\xe9", "\xe8").encode("latin-1"))
    assert source_fingerprint(loader) != before


def test_fingerprint_of_an_option_of_fastloop_is_of_its_file_alone():
    text = Path(str(sys.modules[MyDataset.__module__].__file__)).read_text()
    dataset = MyDataset(root="", count=8, shape=(2, 2))
    assert source_fingerprint(dataset) == fingerprint(text)
