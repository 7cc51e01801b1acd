"""Code to paste from `fastloop tune`: it delivers every sample once, and says what it lacks."""

from __future__ import annotations

import pytest
import torch
from commands import run_script
from torch.utils.data import Dataset

from fastloop.config.catalogue import options_of
from fastloop.config.compose import compose_job
from fastloop.tune.paste import WRITERS, explain_no_code, paste_code

WORKERS = ("num_workers=1", "prefetch_factor=4", "persistent_workers=true")
WITHOUT_CODE = {
    "ffcv",
    "grain",
    "hdf5",
    "python_loop",
    "spdl",
    "tensorclass",
    "tensorclass_memmap",
    "tf_data",
    "tfrecord",
    "torch_storage",
    "webdataset",
    "zarr",
    "hf_datasets",
    "hf_iterable",
    "parquet",
    "torchdata",
    "torchdata_nodes",
    "lance",
    "litdata",
    "spdl_process",
    "turboloader",
    "turboloader_arrays",
    "dali",
    "mosaic_streaming",
}


class Squares(Dataset):
    """Pairs of a vector and a label."""

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return torch.full((3,), float(index)), index % 10


def run_code(code: str, **scope):
    """What the code defines, run as a script's."""
    threads = torch.get_num_threads()
    try:
        exec(compile(code, "tuned.py", "exec"), scope)
    finally:
        torch.set_num_threads(threads)
    return scope


def check_epochs(code: str, overrides: tuple[str, ...], dataset: Dataset) -> None:
    """Run the code, and check two epochs of its loader."""
    loader = run_code(code, dataset=dataset)["loader"]
    epochs = [[(inputs.clone(), labels.clone()) for inputs, labels in loader] for _ in range(2)]
    orders = [[int(row[0]) for inputs, _ in batches for row in inputs] for batches in epochs]
    count = 16 if "drop_last=true" in overrides else 20
    assert all(len({*order}) == len(order) == count for order in orders)
    assert all(len(batches) == len(loader) for batches in epochs)
    sizes = [len(labels) for _, labels in epochs[0]]
    assert sizes == ([8, 8] if "drop_last=true" in overrides else [8, 8, 4])
    for inputs, labels in epochs[0]:
        assert inputs.dtype == torch.float32
        assert labels.dtype == torch.int64
        assert [int(row[0]) % 10 for row in inputs] == labels.tolist()
    if "order=sequential" in overrides:
        assert all(order == sorted(order) for order in orders)
    else:
        assert orders[0] != orders[1]


@pytest.mark.parametrize("loader", WRITERS)
@pytest.mark.parametrize("overrides", [(), ("order=sequential", "drop_last=true")], ids=str)
def test_code_of_each_loader_delivers_every_sample_once(loader, overrides, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = f"loader={loader}", "batch_size=8", "device=cpu", *overrides
    check_epochs(paste_code(compose_job("dataset=digits", *given)), given, Squares())


@pytest.mark.heavy
@pytest.mark.parametrize(
    "overrides",
    [
        ("loader=raw", *WORKERS),
        ("loader=raw", "num_workers=1", "multiprocessing_context=fork", "drop_last=true"),
        ("loader=np_memmap", *WORKERS),
        ("loader=getitems", *WORKERS),
        ("loader=batch_sampler", *WORKERS),
        ("loader=preload", "torch_threads=1"),
        ("loader=fastloop", "loader.num_threads=1", "loader.ahead=2"),
        ("loader=fastloop", "loader.in_memory=true"),
        ("loader=fastloop", "loader.store=null"),
    ],
    ids=" ".join,
)
def test_code_has_the_settings(overrides, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = "batch_size=8", *overrides
    code = paste_code(compose_job("dataset=digits", *given))
    check_epochs(code, given, Squares())
    assert ("num_workers=1," in code) == ("num_workers=1" in overrides)
    assert ("torch.set_num_threads(1)" in code) == ("torch_threads=1" in overrides)


@pytest.mark.heavy
def test_mapped_rows_are_opened_again_in_a_new_process(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = "dataset=digits", "loader=np_memmap", "multiprocessing_context=spawn"
    code = paste_code(compose_job(*given, "num_workers=1", "batch_size=8"))
    dataset = "import torch\n\ndataset = [(torch.full((3,), float(k)), k) for k in range(20)]"
    loop = 'if __name__ == "__main__":\n    print(sum(len(labels) for _, labels in loader))\n'
    script = tmp_path / "script.py"
    script.write_text(code.replace("# dataset: the torch Dataset of your samples", dataset) + loop)

    process = run_script(script, cwd=tmp_path)
    assert (process.stdout, process.returncode) == ("20\n", 0), process.stderr


def test_settings_that_the_code_lacks_are_said():
    code = paste_code(compose_job("dataset=digits", "loader=raw", "device_prefetch=2"))
    assert code.endswith("# to be added: device_prefetch=2\n")


@pytest.mark.heavy
def test_code_of_a_dataset_of_your_own_makes_it():
    code = paste_code(
        compose_job("dataset._target_=slow_stages.Samples", "+dataset.sleep_s=0.5", "loader=raw")
    )
    assert "from slow_stages import Samples" in code
    assert "dataset = Samples(sleep_s=0.5)" in code


def test_loaders_without_code_are_said():
    assert {*options_of("loader")} == {*WRITERS, *WITHOUT_CODE}
    job = compose_job("dataset=digits", "loader=hdf5")
    assert paste_code(job) == ""
    assert explain_no_code(job).startswith("none: loader=hdf5 is a class of its own, see fastloop/")
