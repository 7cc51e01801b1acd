"""Optional libraries: what needs one says what installs it, and in CI each of them is there."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from pathlib import Path

import pytest
from options import ALL_LIBRARIES, REPOSITORY, absent, compose_job, library, options
from options import skip_without_its_library as skip_without

from fastloop.optional import INSTALL_FFCV, Needing
from fastloop.protocols import Decoder
from fastloop.types import Unsupported

JOBS = (
    *((f"loader={name}",) for name in options("loader")),
    *(("loader=np_memmap", f"store@loader.store={name}") for name in options("store")),
    *((f"placement={name}",) for name in options("placement")),
    *(("dataset=photos", f"decoder={name}") for name in options("decoder")),
)

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


def named(requirement: str) -> str:
    """The package."""
    return re.split(r"[<>=;\s]", requirement, maxsplit=1)[0]


@pytest.mark.parametrize("overrides", JOBS, ids=lambda one: one[-1])
def test_the_library_of_every_option_is_there_or_the_option_says_what_installs_it(overrides):
    job = compose_job(*overrides)
    for one in (*(getattr(job, field.name) for field in dataclasses.fields(job)), job.loader.store):
        try:
            if isinstance(one, Needing):
                one.check_installed()
            if isinstance(one, Decoder):
                one.library()
        except Unsupported as why:
            skip_without(why)
            raise


def test_where_all_libraries_are_to_be_there_none_is_skipped(monkeypatch):
    monkeypatch.setenv(ALL_LIBRARIES, "1")
    with pytest.raises(pytest.fail.Exception, match="no_such_module is not installed"):
        library("no_such_module")
    with pytest.raises(pytest.fail.Exception, match="pip install it"):
        skip_without(Unsupported("pip install it"))
    skip_without(Unsupported("no such setting"))


def test_elsewhere_it_is_a_skip_with_its_reason(monkeypatch):
    monkeypatch.delenv(ALL_LIBRARIES, raising=False)
    with pytest.raises(pytest.skip.Exception, match="no_such_module is not installed"):
        library("no_such_module")
    with pytest.raises(pytest.skip.Exception, match="apt-get install it"):
        absent("apt-get install it")


def test_no_test_skips_a_library_past_that_rule():
    texts = {path.name: path.read_text() for path in Path(__file__).parent.glob("*.py")}
    past = [name for name, text in texts.items() if re.search(r"\bimportorskip\(", text)]
    assert past == []


def test_the_tests_install_every_extra_but_what_only_ffcv_or_a_gpu_needs():
    extras = dict(EXTRAS)
    dev = {named(one) for one in extras.pop("dev")}
    only_ffcvs = extras.pop("ffcv")
    extras.pop("tensorrt", None)  # it installs only beside a GPU
    assert {named(one) for all_ in extras.values() for one in all_} <= dev
    assert {named(one) for one in only_ffcvs} == set(INSTALL_FFCV.split(" && ")[1].split()[2:])
