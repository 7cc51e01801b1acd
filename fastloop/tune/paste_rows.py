"""Code to paste for loaders that need a class around the rows of a store."""

from __future__ import annotations

from fastloop.trial.job import Job

STORE = "tuned-store"
"""The folder of the store in the pasted code, relative to the working folder."""
IMPORT_TORCH = "import torch"
IMPORT_PYTREE = "from torch.utils import _pytree as pytree"
IMPORT_STORE = "from fastloop import open_store, write_store"
OPEN_STORE = f'open_store(write_store(dataset, "{STORE}"))'

MAPPED = '''
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
IN_MEMORY = '''
class Rows(Dataset):
    """Rows in memory, of which those of a batch are gathered at once."""

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
LOOP = '''
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
PERMUTED = '''
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
"""Lines of imports, and the lines after them."""


def write_mapped_rows() -> Code:
    """The code of `rows`, a Dataset of the rows of a mapped store."""
    imports = [IMPORT_TORCH, "from torch.utils.data import DataLoader, Dataset", IMPORT_PYTREE]
    made = f'rows = Rows(write_store(dataset, "{STORE}"))  # written once'
    return [*imports, IMPORT_STORE], [*_lines(MAPPED), made]


def write_rows_in_memory(with_sampler: bool) -> Code:
    """The code of `rows`, a Dataset of rows in memory, and of its collate_fn.

    with_sampler: import what a class of a sampler needs, too.
    """
    names = "DataLoader, Dataset, Sampler" if with_sampler else "DataLoader, Dataset"
    imports = [IMPORT_TORCH, f"from torch.utils.data import {names}", IMPORT_PYTREE]
    made = f"rows = Rows({OPEN_STORE})  # written once"
    return [*imports, IMPORT_STORE], [*_lines(IN_MEMORY), made]


def write_index_batches(job: Job, shuffle: bool) -> list[str]:
    """The code of a sampler that yields tensors of indices."""
    return _lines(_fill(INDEX_BATCHES, job, shuffle))


def write_loop(job: Job, shuffle: bool, device: str | None) -> Code:
    """The code of batches that are gathered from memory. device: holds the rows; None: the CPU."""
    argument = f', "{device}"' if device else ""
    made = f"loader = Batches({OPEN_STORE}{argument})"
    imports = [IMPORT_TORCH, IMPORT_PYTREE, IMPORT_STORE]
    return imports, [*_lines(_fill(LOOP, job, shuffle)), made]


def write_permuted_loop(job: Job, shuffle: bool) -> Code:
    """The code of batches that are slices of rows, which each epoch permutes as a whole."""
    imports = ["import numpy as np", IMPORT_TORCH, IMPORT_PYTREE, IMPORT_STORE]
    made = f"loader = Batches({OPEN_STORE})"
    return imports, [*_lines(_fill(PERMUTED, job, shuffle)), made]


def _fill(template: str, job: Job, shuffle: bool) -> str:
    """The template with the job's batch size, order and length."""
    size, function = job.loading.batch_size, "randperm" if shuffle else "arange"
    # -(-a // b) rounds up: the last batch may be short.
    order, length = f"torch.{function}(self.count)", f"-(-self.count // {size})"
    if job.loading.drop_last:
        order, length = f"{order}[: self.count - self.count % {size}]", f"self.count // {size}"
    return template.format(order=order, length=length, batch_size=size)


def _lines(text: str) -> list[str]:
    # Without the empty text behind the last line break.
    return text.split("\n")[:-1]
