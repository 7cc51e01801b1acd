"""Lists of samples and tables are read as what they are, and not as trees of columns."""

from __future__ import annotations

import numpy as np
import pandas
import pytest
import torch
from torch.utils.data import DataLoader

from fastloop import FastLoader, Images, converted

LISTS = {
    "pairs": [(torch.full((3,), float(number)), number) for number in range(10)],
    "pairs of equal lengths": [(torch.full((4,), number), torch.zeros(4)) for number in range(4)],
    "dicts": [{"x": torch.rand(3), "y": number} for number in range(10)],
    "many dicts of tensors": [{"x": torch.rand(3), "y": torch.rand(3)} for _ in range(100)],
    "dicts of single numbers": [{"y": torch.tensor(number)} for number in range(5)],
    "tensors": [torch.ones(2) * number for number in range(2)],
    "many equal tensors": [torch.zeros(3, 2)] * 100,
    "arrays": [np.full(4, number) for number in range(4)],
    "dicts of columns": [{"x": torch.arange(4)}, {"x": torch.arange(4, 8)}],
    "nested lists": [[torch.arange(3), [torch.zeros(2)]] for _ in range(5)],
    "nothing": [],
    "dicts of text": [{"name": f"number {number}"} for number in range(5)],
}


@pytest.mark.parametrize("source", LISTS.values(), ids=LISTS)
def test_list_of_samples_is_read_as_dataloader_reads_it(source):
    for settings in ({"batch_size": 3}, {"batch_size": 3, "num_threads": 2}):
        ours, theirs = FastLoader(source, **settings), DataLoader(source, 3)
        assert repr(list(ours)) == repr(list(theirs))
        collated = FastLoader(source, collate_fn=len, **settings)
        assert list(collated) == [len(source[k : k + 3]) for k in range(0, len(source), 3)]
    assert FastLoader(source).dataset is source


def test_list_of_columns_is_refused_and_names_the_tuple():
    images = Images([b"", b""], (4, 4))
    for source in ([images, torch.arange(2)], [converted(torch.zeros(2, 3))]):
        with pytest.raises(ValueError, match=r"is a column: tuple\(source\) means columns"):
            FastLoader(source)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_in_a_list_are_samples():
    rows = [torch.nested.nested_tensor([torch.full((3,), float(i))]) for i in range(4)]
    batches = list(FastLoader(rows, 2, collate_fn=list, num_threads=0))
    assert [each.unbind()[0].tolist() for batch in batches for each in batch] == [
        [float(number)] * 3 for number in range(4)
    ]
    with pytest.raises(RuntimeError, match="nested tensors are not currently supported"):
        next(iter(FastLoader(rows, 2)))


def test_growing_list_is_seen_at_the_next_epoch():
    source = [torch.full((3,), number) for number in range(4)]
    ours = [FastLoader(source, 2), FastLoader(source, 2, shuffle=True, num_threads=2)]
    theirs = DataLoader(source, 2)
    for _ in range(3):
        for loader in ours:
            assert len(loader) == len(theirs)
            delivered = sorted(row.tolist() for batch in loader for row in batch)
            assert delivered == sorted(row.tolist() for batch in theirs for row in batch)
        source.append(torch.full((3,), len(source)))
    assert ours[0].num_samples == 7
    assert ours[0].dataset is source


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


@pytest.mark.parametrize("names", [["a", "a"], [1, "1"]])
def test_columns_of_one_name_are_refused(names):
    with pytest.raises(
        ValueError, match=f"^2 columns are named '{names[1]}': rename or drop them$"
    ):
        FastLoader(pandas.DataFrame([[1, 2], [3, 4]], columns=names))
