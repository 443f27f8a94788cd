"""``paceline pack`` and ``paceline inspect`` as their users meet them."""

import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from framework.data.store import open_store
from tests.cli.command import is_one_error_line, paceline
from tests.test_bad_input import image_folder


@pytest.mark.parametrize("output", ["hdf5", "lmdb"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_folder_is_packed_in_the_order_of_its_names(output, workers):
    image_folder("images", count=70)
    done = paceline("pack", "input=folder", "input.path=images", f"output={output}", "output.path=x", f"workers={workers}")
    assert done.code == 0
    store = open_store("x")
    assert store.manifest.num_records == 140
    assert list(store.manifest.classes) == ["cat", "dog"]
    assert list(store.manifest.class_counts) == [70, 70]
    records = store.read(torch.arange(140))
    assert records["label"].tolist() == [0] * 70 + [1] * 70
    assert bytes(records["image"][0]) == Path("images/cat/0.png").read_bytes()
    store.close()


@pytest.mark.parametrize("output", ["hdf5", "lmdb"])
def test_the_number_of_processes_does_not_change_the_file(output):
    image_folder("images", count=200)
    for workers in (0, 1, 3):
        words = ["input.path=images", "input.encode=raw", f"output={output}", f"output.path=x{workers}", f"workers={workers}"]
        assert paceline("pack", *words).code == 0
    assert Path("x0").read_bytes() == Path("x1").read_bytes() == Path("x3").read_bytes()


def test_arrays_are_packed_as_they_are():
    arrays = {"wave": np.random.default_rng(0).random((50, 7), np.float32), "depth": np.arange(50, dtype=np.int16)}
    np.savez("a.npz", **arrays)
    assert paceline("pack", "input=arrays", "input.path=a.npz", "output=lmdb", "output.path=a.lmdb").code == 0
    store = open_store("a.lmdb")
    records = store.read(torch.arange(50))
    assert np.array_equal(records["wave"], arrays["wave"])
    assert np.array_equal(records["depth"], arrays["depth"])
    store.close()


def test_inspect_prints_the_manifest_and_draws_a_grid():
    assert paceline("pack", "input=digits", "output.path=d.h5").code == 0
    done = paceline("inspect", "d.h5", "grid=grid.png")
    assert done.code == 0
    for words in ("1437 records", "schema 1", "field image: raw uint8 1x8x8, 64 bytes a record", "class 3: 3  135 records"):
        assert words in done.out
    grid = cv2.imread("grid.png")
    assert grid.shape == (576, 576, 3)  # 36 tiles of 96 pixels
    assert grid.std() > 10


def test_inspect_takes_one_word_for_the_store():
    assert is_one_error_line(paceline("inspect"), "C103")
    assert is_one_error_line(paceline("inspect", "nowhere=x"), "C102")
    assert is_one_error_line(paceline("inspect", "a.h5", "b.h5"), "C100")


def test_inspect_does_not_draw_over_a_store():
    assert paceline("pack", "input=digits", "output.path=d.h5").code == 0
    assert is_one_error_line(paceline("inspect", "d.h5", "grid=d.h5"), "C101")
    assert paceline("inspect", "d.h5").code == 0


def test_a_store_and_a_folder_go_back_and_forth():
    words = ["output=folder", "output.path=png"]
    assert paceline("pack", "input=digits", *words).code == 0
    assert paceline("pack", "input=folder", "input.path=png", "input.encode=raw", "output.path=again.h5").code == 0
    assert paceline("pack", "input=digits", "output.path=straight.h5").code == 0
    some, others = open_store("again.h5"), open_store("straight.h5")
    every = torch.arange(1437)
    assert all(torch.equal(some.read(every)[name], others.read(every)[name]) for name in ("image", "label"))
    some.close()
    others.close()


def test_an_output_folder_that_exists_is_refused():
    Path("png").mkdir()
    assert is_one_error_line(paceline("pack", "input=digits", "output=folder", "output.path=png"), "D115")


def test_a_reader_that_goes_early_is_no_error():
    assert paceline("pack", "input=digits", "output.path=d.h5").code == 0
    words = f"set -o pipefail; {sys.executable} -m framework inspect d.h5 | head -1"
    done = subprocess.run(["bash", "-c", words], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in (0, 141)  # 0 where everything was written before the reader went
    assert done.stderr == ""
