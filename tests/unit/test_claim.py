"""A command's claim to a sweep's folder."""

from __future__ import annotations

import pytest

from fastloop.core.outputs_folder import CLAIM, claim_sweep_folder
from fastloop.core.types import UsageError


def test_second_claim_is_refused_until_the_first_ends(tmp_path):
    with claim_sweep_folder(tmp_path):
        assert (tmp_path / CLAIM).exists()
        refused = pytest.raises(UsageError, match="another command measures this sweep")
        with refused, claim_sweep_folder(tmp_path):
            raise AssertionError("it was claimed twice")
    assert not (tmp_path / CLAIM).exists()
    with claim_sweep_folder(tmp_path):
        pass


@pytest.mark.parametrize("has_locks", [True, False])
def test_error_of_the_body_is_told_alone(tmp_path, has_locks):
    """Also where no lock can be made, here because the folder is a file."""
    folder = tmp_path if has_locks else tmp_path / "file"
    if not has_locks:
        folder.touch()
    with pytest.raises(ValueError, match="the body's") as caught, claim_sweep_folder(folder):
        raise ValueError("the body's")
    assert caught.value.__context__ is None
    assert caught.value.__cause__ is None
