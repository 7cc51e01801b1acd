"""Every store: what lies in its folder is data, and never code."""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import warnings
from pathlib import Path

import pytest
from options import MYDATASET, compose_job, options, skip_without_library

from fastloop.core.types import Unsupported
from fastloop.data.prepare_dataset import prepare

PLANTED = ("other.pickle", "data/other.pickle", "meta.pkl", "archive.pt")


class Code:
    """An object whose pickle makes a folder when it is loaded."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("store", options("store"))
def test_store_runs_no_pickle_that_lies_in_its_folder(outputs, tmp_path, store):
    job = compose_job("loader=np_memmap", f"store@loader.store={store}", *MYDATASET)
    try:
        prepared = prepare(job.dataset, job.loader.store)
    except Unsupported as error:
        skip_without_library(error)
        raise
    proof = tmp_path / "was run"
    code = pickle.dumps(Code(proof))
    files = [path.relative_to(prepared.folder) for path in prepared.folder.rglob("*")]
    names = [str(path) for path in files if (prepared.folder / path).is_file()]
    for number, name in enumerate([*names, *PLANTED]):
        folder = tmp_path / str(number)
        shutil.copytree(prepared.folder, folder)
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(code)
        with contextlib.suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # tensordict's warning would be an error
            job.loader.store.open(folder)
        assert not proof.exists(), name
    pickle.loads(code)
    assert proof.is_dir()  # what the assertion above would have found
