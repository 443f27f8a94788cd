from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from framework.pack import jobs
from framework.store.open_store import open_store
from tests.cli.command import is_one_error_line, paceline
from tests.test_bad_input import image_folder


@pytest.mark.parametrize("output", ["hdf5", "lmdb"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_folder_is_packed_in_the_order_of_its_names(output, workers):
    image_folder("images", count=70)
    done = paceline(
        *("pack", "input=folder", "input.path=images", f"output={output}", "output.path=x"),
        f"workers={workers}",
    )
    assert done.code == 0
    store = open_store("x")
    assert store.manifest.num_records == 140
    assert list(store.manifest.classes) == ["cat", "dog"]
    assert list(store.manifest.class_counts) == [70, 70]
    records = store.read(torch.arange(140))
    assert records["label"].tolist() == [0] * 70 + [1] * 70
    assert bytes(records["image"][0]) == Path("images/cat/0.png").read_bytes()
    store.close()


def test_a_store_and_a_folder_go_back_and_forth():
    words = ["output=folder", "output.path=png"]
    assert paceline("pack", "input=digits", *words).code == 0
    words = ("input.path=png", "pack.encode=raw", "output.path=again.h5")
    assert paceline("pack", "input=folder", *words).code == 0
    assert paceline("pack", "input=digits", "output.path=straight.h5").code == 0
    some, others = open_store("again.h5"), open_store("straight.h5")
    every = torch.arange(1437)
    assert all(
        torch.equal(some.read(every)[name], others.read(every)[name]) for name in ("image", "label")
    )
    some.close()
    others.close()


def many_images(count=80, size=(40, 56)):
    """Write a folder of noise, and return the words that pack it."""
    rng = np.random.default_rng(0)
    for number in range(count):
        path = Path(f"many/{'ab'[number % 2]}/{number}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(path), rng.integers(0, 256, (*size, 3), np.uint8))
    return ["input.path=many", "pack.encode=raw", "pack.size=[32,32]"]


def test_parts_are_packed_by_a_sweep(monkeypatch):
    monkeypatch.setattr(jobs, "MIN_JOB_BYTES", 1 << 17)  # several jobs
    words = many_images()
    done = paceline(
        "pack", "-m", "pack.part=range(0,4)", "pack.parts=4", *words, "output.path=x.h5"
    )
    assert done.code == 0, done.err
    assert "packed 80 records" in done.err
    assert paceline("pack", *words, "output.path=y.h5").code == 0
    assert Path("x.h5").read_bytes() == Path("y.h5").read_bytes()


@pytest.mark.parametrize(
    ("word", "number"),
    [
        *(("+pack.reize=5", "C102"), ("pack.resize=big", "C101"), ("pack.on_error=maybe", "C150")),
        *(("pack.part=3", "C151"), ("workers=-1", "C101"), ("pack.size=[a,b]", "C101")),
    ],
)
def test_keys_that_cannot_be_are_refused(word, number):
    assert is_one_error_line(paceline("pack", "input=digits", "output.path=d.h5", word), number)
