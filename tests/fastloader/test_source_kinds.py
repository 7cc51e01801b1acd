"""Lists of samples and tables are read as what they are, and not as trees of columns."""

from __future__ import annotations

import numpy as np
import pandas
import pytest
import torch
from torch.utils.data import DataLoader

from fastloop import FastLoader

LISTS = {
    "pairs": [(torch.full((3,), float(number)), number) for number in range(10)],
    "pairs of equal lengths": [(torch.full((4,), number), torch.zeros(4)) for number in range(4)],
    "dicts": [{"x": torch.rand(3), "y": number} for number in range(10)],
    "many dicts of tensors": [{"x": torch.rand(3), "y": torch.rand(3)} for _ in range(100)],
    "dicts of single numbers": [{"y": torch.tensor(number)} for number in range(5)],
    "dicts of text": [{"name": f"number {number}"} for number in range(5)],
}


@pytest.mark.parametrize("source", LISTS.values(), ids=LISTS)
def test_list_of_samples_is_read_as_dataloader_reads_it(source):
    for settings in ({"batch_size": 3}, {"batch_size": 3, "num_threads": 2}):
        ours, theirs = FastLoader(source, **settings), DataLoader(source, 3)
        assert repr(list(ours)) == repr(list(theirs))
    assert len(FastLoader(source).dataset) == len(source)


def test_lists_of_columns_stay_trees():
    rows, labels = torch.rand(8, 2), torch.arange(8)
    for source in (
        [rows, labels],
        [rows, (labels,)],
        [[rows, rows], [labels, labels]],
        [{"x": rows}, {"y": labels}],
    ):
        (batch,) = FastLoader(source, 8)
        assert torch.utils._pytree.tree_structure(batch) == torch.utils._pytree.tree_structure(
            source
        )
        assert torch.equal(torch.utils._pytree.tree_leaves(batch)[0], rows)


def test_long_list_of_equal_tensors_is_refused():
    with pytest.raises(
        ValueError, match=r"a list of 100 tensors .* \(3, 2\) may be samples or columns"
    ):
        FastLoader([torch.zeros(3, 2)] * 100)
    assert len(list(FastLoader(tuple([torch.zeros(3, 2)] * 100)))) == 3


def test_table_is_read_by_columns():
    table = pandas.DataFrame({"x": [0.5, 1.5, 2.5], "y": [1, 2, 3], "z": [True, False, True]})
    batches = list(FastLoader(table, 2))
    assert [list(batch) for batch in batches] == [["x", "y", "z"]] * 2
    assert batches[1]["x"].tolist() == [2.5]
    assert batches[0]["y"].dtype == torch.int64
    assert torch.cat(list(FastLoader(table["y"], 2))).tolist() == [1, 2, 3]
    chosen = list(FastLoader(table[["x", "y"]][table["z"]], 2))
    assert chosen[0]["y"].tolist() == [1, 3]
    assert FastLoader(table).dataset[1]["y"] == 2


@pytest.mark.parametrize("values", [["a", "b"], [1, "b"], [np.datetime64("2020-01-01")] * 2])
def test_table_with_other_values_than_numbers_is_refused_by_name(values):
    with pytest.raises(ValueError, match="the column 'word' has values of type"):
        FastLoader(pandas.DataFrame({"x": [1, 2], "word": values}))
