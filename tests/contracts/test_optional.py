"""Optional libraries: an option names the install command, and CI installs all of them."""

from __future__ import annotations

import dataclasses
import re
import tomllib

import pytest
from options import ALL_LIBRARIES, REPOSITORY, compose_job, options, require_library, skip_or_fail
from options import skip_without_library as skip_without

from fastloop.core.optional_libraries import INSTALL_FFCV, HasInstallCheck
from fastloop.core.protocols import Decoder
from fastloop.core.types import Unsupported

JOBS = (
    *((f"loader={name}",) for name in options("loader")),
    *(("loader=np_memmap", f"store@loader.store={name}") for name in options("store")),
    *((f"placement={name}",) for name in options("placement")),
    *(("dataset=photos", f"decoder={name}") for name in options("decoder")),
)

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


def package_of(requirement: str) -> str:
    """Name of the package that a requirement names."""
    return re.split(r"[<>=;\s]", requirement, maxsplit=1)[0]


@pytest.mark.parametrize("overrides", JOBS, ids=lambda overrides: overrides[-1])
def test_option_has_its_library_or_names_the_install_command(overrides):
    job = compose_job(*overrides)
    for option in (
        *(getattr(job, field.name) for field in dataclasses.fields(job)),
        job.loader.store,
    ):
        try:
            if isinstance(option, HasInstallCheck):
                option.check_installed()
            if isinstance(option, Decoder):
                option.library()
        except Unsupported as error:
            skip_without(error)
            raise


def test_absent_library_fails_where_all_are_required(monkeypatch):
    monkeypatch.setenv(ALL_LIBRARIES, "1")
    with pytest.raises(pytest.fail.Exception, match="no_such_module is not installed"):
        require_library("no_such_module")
    with pytest.raises(pytest.fail.Exception, match="pip install it"):
        skip_without(Unsupported("pip install it"))
    skip_without(Unsupported("no such setting"))


def test_absent_library_skips_elsewhere_with_its_reason(monkeypatch):
    monkeypatch.delenv(ALL_LIBRARIES, raising=False)
    with pytest.raises(pytest.skip.Exception, match="no_such_module is not installed"):
        require_library("no_such_module")
    with pytest.raises(pytest.skip.Exception, match="apt-get install it"):
        skip_or_fail("apt-get install it")


def test_no_test_uses_importorskip():
    texts = {path.name: path.read_text() for path in (REPOSITORY / "tests").rglob("*.py")}
    offenders = [name for name, text in texts.items() if re.search(r"\bimportorskip\(", text)]
    assert offenders == ["test_trainers.py"]  # of libraries that only the extra "programs" has


def test_dev_extra_covers_every_extra_but_those_of_large_libraries():
    extras = dict(EXTRAS)
    dev = {package_of(requirement) for requirement in extras.pop("dev")}
    ffcv_requirements = extras.pop("ffcv")
    extras.pop("tensorrt", None)  # it installs only on a machine with a GPU
    # 600, 380 and 1,300 MB
    absent = [package_of(each) for name in ("dali", "jax", "tf_data") for each in extras.pop(name)]
    assert dev.isdisjoint([*absent, "ffcv", "mosaicml-streaming"])
    large = {"lightning", "transformers"}  # whose tests say so where they are absent
    assert {
        package_of(requirement) for requirements in extras.values() for requirement in requirements
    } <= dev | large
    assert {package_of(requirement) for requirement in ffcv_requirements} == set(
        INSTALL_FFCV.split(" && ")[1].split()[2:]
    )
