"""Write the Python code of a tuned job, for the user to paste into a script.

`paste_code` returns the code. It makes a `loader`: a DataLoader, a FastLoader or a class of batches
over rows in memory, and writes the store that the loader reads. `fastloop tune` prints it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fastloop.core.loading_settings import DATALOADER, DECLARED, worker_settings
from fastloop.core.types import name_of
from fastloop.processes.rank_group import resolve_device
from fastloop.trial.job import Job

SHUFFLE_OF_ORDER = {"random": True, "sequential": False}
"""DataLoader's `shuffle` by the name of the order."""
LOOP_SETTINGS = ("device_prefetch", "pinned_buffers")
"""Settings of the loop around a loader, which the code of a loader can't express."""
IMPORT_DATALOADER = "from torch.utils.data import DataLoader"
STORE_FOLDER = "tuned-store"
"""The folder of the store in the pasted code, relative to the working folder."""
IMPORT_TORCH = "import torch"
IMPORT_PYTREE = "from torch.utils import _pytree as pytree"
IMPORT_STORE = "from fastloop import open_store, write_store"
OPEN_STORE = f'open_store(write_store(dataset, "{STORE_FOLDER}"))'

# The classes around the rows of a store, for loaders that need such a class. `_fill` replaces the
# names in braces.
MAPPED_ROWS = '''
class Rows(Dataset):
    """Rows of the files of a store, which each worker maps itself."""

    def __init__(self, folder):
        self.folder, self.rows = folder, open_store(folder)

    def __len__(self):
        return len(pytree.tree_leaves(self.rows)[0])

    def __getitem__(self, index):
        return pytree.tree_map(lambda leaf: torch.tensor(leaf[index]), self.rows)

    def __reduce__(self):
        return Rows, (self.folder,)

'''
ROWS_IN_MEMORY = '''
class Rows(Dataset):
    """Rows in memory; all rows of a batch are gathered at once."""

    def __init__(self, rows):
        self.rows = pytree.tree_map(torch.tensor, rows)

    def __len__(self):
        return len(pytree.tree_leaves(self.rows)[0])

    def __getitem__(self, indices):
        return pytree.tree_map(lambda leaf: leaf[indices], self.rows)

    def __getitems__(self, indices):
        return self[torch.tensor(indices)]


def deliver(batch):
    return batch

'''
INDEX_BATCHES = '''
class IndexBatches(Sampler):
    """The indices of each batch as a tensor."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return {length}

    def __iter__(self):
        order = {order}
        return iter(order.split({batch_size}))

'''
GATHERED_BATCHES = '''
class Batches:
    """Batches of rows in memory, each gathered at once."""

    def __init__(self, rows, device="cpu"):
        self.rows = pytree.tree_map(lambda leaf: torch.tensor(leaf, device=device), rows)
        self.count, self.device = len(pytree.tree_leaves(rows)[0]), device

    def __len__(self):
        return {length}

    def __iter__(self):
        order = {order}
        for indices in order.to(self.device).split({batch_size}):
            yield pytree.tree_map(lambda leaf: leaf.index_select(0, indices), self.rows)

'''
PERMUTED_BATCHES = '''
class Batches:
    """Batches of rows in memory, which are permuted as a whole for each epoch."""

    def __init__(self, rows):
        self.rows = pytree.tree_map(np.array, rows)
        self.count = len(pytree.tree_leaves(rows)[0])

    def __len__(self):
        return {length}

    def __iter__(self):
        order = {order}
        rows = pytree.tree_map(lambda leaf: leaf.take(order.numpy(), axis=0), self.rows)
        for start in range(0, len(order), {batch_size}):
            batch = slice(start, start + {batch_size})
            yield pytree.tree_map(lambda leaf: torch.from_numpy(leaf[batch]), rows)

'''
Code = tuple[list[str], list[str]]
"""The lines of code that import, and the lines of code after them."""


def paste_code(job: Job) -> str:
    """The code of the job's loader, with a comment on settings that it leaves out.

    Empty if there is no code for this loader. If the dataset is not a class of the user's own, the
    code expects a Dataset in the variable `dataset`.
    """
    write = WRITERS.get(name_of(job.loader))
    if write is None:
        return ""
    imports, body = write(job)
    # The line that sets torch's threads needs the import of torch, which not every loader has.
    if job.torch_threads:
        imports = [*dict.fromkeys((IMPORT_TORCH, *imports))]
    dataset_imports, dataset = _dataset(job)
    head = sorted({*imports, *dataset_imports}, key=lambda line: (line.startswith("from"), line))
    threads = [f"torch.set_num_threads({job.torch_threads})"] if job.torch_threads else []
    return "\n".join([*head, "", *dataset, *threads, *body, *_remarks(job), ""])


def explain_no_code(job: Job) -> str:
    """A line that says why there is no code to paste for the job's loader."""
    loader = name_of(job.loader)
    where = f"fastloop/options/loader/{loader}.py"
    return f"none: loader={loader} is a class of its own, see {where}; the command line runs it"


def _raw(job: Job) -> Code:
    return [IMPORT_DATALOADER], _dataloader(job, "dataset")


def _preload(job: Job) -> Code:
    read = "samples = [dataset[index] for index in range(len(dataset))]  # all in memory"
    return [IMPORT_DATALOADER], [read, *_dataloader(job, "samples")]


def _in_memory(job: Job) -> Code:
    """A DataLoader over tensors in memory, with tuples of tensors as samples."""
    imports = [IMPORT_TORCH, "from torch.utils.data import DataLoader, TensorDataset"]
    imports.append(IMPORT_STORE)
    rows = f"rows = {OPEN_STORE}  # written once"
    samples = "samples = TensorDataset(*(torch.tensor(leaf) for leaf in rows))"
    return imports, [rows, samples, *_dataloader(job, "samples")]


def _np_memmap(job: Job) -> Code:
    """A DataLoader over the rows of a mapped store."""
    imports = [IMPORT_TORCH, "from torch.utils.data import DataLoader, Dataset", IMPORT_PYTREE]
    rows = f'rows = Rows(write_store(dataset, "{STORE_FOLDER}"))  # written once'
    return [*imports, IMPORT_STORE], [*_lines(MAPPED_ROWS), rows, *_dataloader(job, "rows")]


def _getitems(job: Job) -> Code:
    imports, rows = _write_rows_in_memory(with_sampler=False)
    return imports, [*rows, *_dataloader(job, "rows", collate_fn="deliver")]


def _batch_sampler(job: Job) -> Code:
    """A DataLoader over rows in memory that gathers all rows of a batch at once."""
    imports, rows = _write_rows_in_memory(with_sampler=True)
    sampler = {"sampler": "IndexBatches(len(rows))", "batch_size": "None", "collate_fn": "deliver"}
    lines = [*_lines(_fill(INDEX_BATCHES, job)), *rows]
    return imports, [*lines, *_call("DataLoader", "rows", sampler | _of_workers(job))]


def _fastloop(job: Job) -> Code:
    """A FastLoader over the dataset, or over the rows of a store."""
    # FastLoader chooses its threads and its depth by itself unless they were tuned.
    loader: Any = job.loader
    arguments = _batches(job)
    if loader.num_threads is not None:
        arguments["num_threads"] = repr(loader.num_threads)
    if loader.ahead is not None:
        arguments["prefetch_factor"] = repr(loader.ahead)
    if loader.store is None:
        return ["from fastloop import FastLoader"], _call("FastLoader", "dataset", arguments)
    imports = ["from fastloop import FastLoader, open_store, write_store"]
    lines = [f"rows = {OPEN_STORE}  # written once"]
    if loader.in_memory:
        imports += ["import numpy as np", IMPORT_PYTREE]
        lines.append("rows = pytree.tree_map(np.array, rows)  # all in memory")
    return imports, [*lines, *_call("FastLoader", "rows", arguments)]


def _index_loop(job: Job) -> Code:
    return _write_loop(job, f"loader = Batches({OPEN_STORE})")


def _device_resident(job: Job) -> Code:
    return _write_loop(job, f'loader = Batches({OPEN_STORE}, "{resolve_device(job.device)}")')


def _numpy_loop(job: Job) -> Code:
    """Batches that are slices of rows, which each epoch permutes as a whole."""
    imports = ["import numpy as np", IMPORT_TORCH, IMPORT_PYTREE, IMPORT_STORE]
    return imports, [*_lines(_fill(PERMUTED_BATCHES, job)), f"loader = Batches({OPEN_STORE})"]


WRITERS: Mapping[str, Callable[[Job], Code]] = {
    "raw": _raw,
    "preload": _preload,
    "dataloader": _in_memory,
    "np_memmap": _np_memmap,
    "getitems": _getitems,
    "batch_sampler": _batch_sampler,
    "fastloop": _fastloop,
    "index_loop": _index_loop,
    "device_resident": _device_resident,
    "numpy_loop": _numpy_loop,
}
"""For each loader that has code, by name, the function that writes the code."""


def _dataloader(job: Job, samples: str, **more: str) -> list[str]:
    return _call("DataLoader", samples, _batches(job) | _of_workers(job) | more)


def _batches(job: Job) -> dict[str, str]:
    """The arguments batch_size, shuffle and drop_last, as code by name."""
    arguments = {"batch_size": repr(job.loading.batch_size)}
    if _is_shuffled(job):
        arguments["shuffle"] = "True"
    if job.loading.drop_last:
        arguments["drop_last"] = "True"
    return arguments


def _of_workers(job: Job) -> dict[str, str]:
    """DataLoader's arguments such as num_workers that differ from the defaults, as code by name."""
    needless = [] if job.loading.num_workers else worker_settings(prefetches_by_process=False)
    values = {name: getattr(job.loading, name) for name in DATALOADER if name not in needless}
    return {name: repr(each) for name, each in values.items() if each != DECLARED[name].default}


def _is_shuffled(job: Job) -> bool:
    return SHUFFLE_OF_ORDER.get(name_of(job.order), False)


def _call(name: str, first: str, arguments: Mapping[str, str]) -> list[str]:
    lines = [f"    {first},", *(f"    {key}={code}," for key, code in arguments.items())]
    return [f"loader = {name}(", *lines, ")"]


def _dataset(job: Job) -> Code:
    """The code that makes the Dataset, or a comment in its place."""
    # A user's script can import only a class of the user's own, which dataset._target_ names.
    dataset: Any = job.dataset
    target = getattr(dataset, "target", None)
    if not target:
        return [], ["# dataset: the torch Dataset of your samples"]
    module, _, name = target.rpartition(".")
    arguments = ", ".join(f"{key}={value!r}" for key, value in (dataset.kwargs or {}).items())
    return [f"from {module} import {name}"], [f"dataset = {name}({arguments})"]


def _remarks(job: Job) -> list[str]:
    """A comment that lists the settings that the code leaves out."""
    names = [f"{name}={getattr(job, name)}" for name in LOOP_SETTINGS if getattr(job, name)]
    if name_of(job.order) not in SHUFFLE_OF_ORDER:
        names.append(f"order={name_of(job.order)}")
    parts = {"collate": "default", "transform": "none"}
    for group, default in parts.items():
        if (option := name_of(getattr(job, group))) != default:
            names.append(f"{group}={option}")
    return [f"# to be added: {', '.join(names)}"] if names else []


def _write_rows_in_memory(with_sampler: bool) -> Code:
    """The code of `rows`, a Dataset of rows in memory, and of its collate_fn `deliver`.

    with_sampler: True to import torch's class Sampler, too.
    """
    names = "DataLoader, Dataset, Sampler" if with_sampler else "DataLoader, Dataset"
    imports = [IMPORT_TORCH, f"from torch.utils.data import {names}", IMPORT_PYTREE]
    made = f"rows = Rows({OPEN_STORE})  # written once"
    return [*imports, IMPORT_STORE], [*_lines(ROWS_IN_MEMORY), made]


def _write_loop(job: Job, made: str) -> Code:
    """The code of batches that are gathered from memory. made: the line that makes the loader."""
    imports = [IMPORT_TORCH, IMPORT_PYTREE, IMPORT_STORE]
    return imports, [*_lines(_fill(GATHERED_BATCHES, job)), made]


def _fill(template: str, job: Job) -> str:
    """The template with the job's batch size, order and length."""
    size = job.loading.batch_size
    function = "randperm" if _is_shuffled(job) else "arange"
    # -(-a // b) rounds up: the last batch may be short.
    order, length = f"torch.{function}(self.count)", f"-(-self.count // {size})"
    if job.loading.drop_last:
        order, length = f"{order}[: self.count - self.count % {size}]", f"self.count // {size}"
    return template.format(order=order, length=length, batch_size=size)


def _lines(text: str) -> list[str]:
    # Each template ends with a line break, after which split() finds an empty text.
    return text.split("\n")[:-1]
