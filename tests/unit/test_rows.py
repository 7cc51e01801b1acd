"""Rows of trees of arrays."""

import numpy as np
import pytest
import torch

from fastloop.core.types import Unsupported
from fastloop.data.rows import Rows


def test_row_is_made_of_the_rows_of_all_leaves():
    images = torch.arange(6).reshape(3, 2)
    rows = Rows(lambda: {"image": images, "pair": (np.arange(3), torch.arange(3))})
    assert len(rows) == 3
    row = rows[2]
    assert row["image"].tolist() == [4, 5]
    assert [int(each) for each in row["pair"]] == [2, 2]


@pytest.mark.parametrize("build", [tuple, list, lambda leaves: dict(enumerate(leaves))])
def test_leaves_of_unequal_lengths_are_refused_with_their_lengths(build):
    leaves = np.zeros((3, 2)), torch.zeros(4)
    with pytest.raises(Unsupported, match="of the lengths 3, 4; all leaves need one length"):
        Rows(lambda: build(leaves))
