from pathlib import Path

import pytest

from framework.errors import CheckpointError
from framework.train.weight_place import check_place


def test_a_file_and_a_folder_are_places():
    Path("x.pth").touch()
    check_place("x.pth")
    check_place(".")


def test_a_place_that_is_not_there_is_answered_with_the_nearest():
    Path("best.pt").touch()
    with pytest.raises(CheckpointError, match=r"K110\]: bset.pt: .* did you mean 'best.pt'\?"):
        check_place("bset.pt")


def test_a_device_is_no_place():
    with pytest.raises(CheckpointError, match=r"K110\]: /dev/null: is no regular file"):
        check_place("/dev/null")
