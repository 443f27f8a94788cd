"""Bad input gives one line, the documented exit code, no traceback, and leaves nothing behind."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from tests.cli.command import Done, is_one_error_line, paceline, started


def check(done: Done, code: int, number: str, *words: str) -> None:
    """Check the exit code, and that the one error line has this number and contains ``words``."""
    assert done.code == code, done.err
    assert is_one_error_line(done, number), done.err
    line = next(line for line in done.err.splitlines() if line.startswith("error["))
    assert all(word in line for word in words), line
    assert "; " in line  # what to do


def image_folder(root: str, count: int = 3, size: int = 8) -> Path:
    """Write a folder of gray PNGs in two classes."""
    for name in ("cat", "dog"):
        (Path(root) / name).mkdir(parents=True)
        for number in range(count):
            cv2.imwrite(
                str(Path(root) / name / f"{number}.png"),
                np.full((size, size), 10 * number % 256, np.uint8),
            )
    return Path(root)


def digits(ending: str) -> str:
    """Pack the digits. Return the path of the store."""
    path = f"digits{ending}"
    output = "hdf5" if ending == ".h5" else "lmdb"
    assert paceline("pack", "input=digits", f"output={output}", f"output.path={path}").code == 0
    return path


@pytest.mark.parametrize("data", ["dali", "folder"])
def test_a_missing_file_is_named(data):
    done = paceline("train", f"data={data}", "data.train=nowhere.h5", "prepare=null")
    check(done, 3, "D101", "nowhere.h5")


@pytest.mark.parametrize("words", [["workers.num=2", "workers.kind=process"], ["loader=plain"]])
def test_a_text_file_named_jpg_is_named_when_training(words):
    (image_folder("images") / "dog" / "bad.jpg").write_text("hello")
    done = paceline(
        *("train", "data=folder", "data.train=images", "data.val=null", "prepare=null"),
        *("batch_size=2", *words),
    )
    check(done, 3, "D106", "dog/bad.jpg")


def test_a_missing_field_is_refused_before_the_first_step():
    np.savez("odd.npz", picture=np.zeros((20, 1, 8, 8), np.uint8))
    assert paceline("pack", "input=arrays", "input.path=odd.npz", "output.path=odd.h5").code == 0
    typed = ("model.in_channels=1", "model.num_classes=2")
    done = paceline("train", "data.train=odd.h5", "augment=none", *typed)
    check(done, 2, "C118", "picture (1, 8, 8) (there is no 'image')")


@pytest.mark.slow
def test_dali_that_is_not_installed_is_refused(tmp_path):
    (tmp_path / "hidden" / "nvidia" / "dali").mkdir(parents=True)
    (tmp_path / "hidden" / "nvidia" / "__init__.py").touch()
    (tmp_path / "hidden" / "nvidia" / "dali" / "__init__.py").write_text(
        "raise ImportError('not installed')\n"
    )
    done = started("train", "data=dali", PYTHONPATH=str(tmp_path / "hidden"))
    check(done, 5, "R103", "pip install")
