import os
from pathlib import Path

import numpy as np
import pytest

from framework.contracts.records import Field, Manifest
from framework.errors import DataError
from framework.store.folder_store import FolderStore, FolderWriter
from tests.conftest import FIELDS
from tests.contract.cases import jpeg, pixels


def _touch(*names):
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(jpeg(0))


def _written(classes, labels, image=None):
    """Write a folder with these classes and labels, and return the relative names of its files."""
    images = np.stack(
        [
            image if image is not None else pixels(n, 4, 4).transpose(2, 0, 1)
            for n in range(len(labels))
        ]
    )
    writer = FolderWriter("out", fields=FIELDS, num_records=len(labels))
    writer.write({"image": images, "label": np.array(labels)}, [""] * len(labels))
    writer.close(Manifest(len(labels), FIELDS, classes))
    return {str(file.relative_to("out")) for file in Path("out").rglob("*.*")}


def test_classes_and_files_come_in_the_byte_order_of_their_names():
    _touch("in/b/2.jpg", "in/b/10.jpg", "in/B/1.png", "in/ä/1.jpg", "in/a/x/1.jpg", "in/a/x.jpg")
    store = FolderStore("in")
    assert store.manifest.classes == ["B", "a", "b", "ä"]
    assert store.files == ["B/1.png", "a/x.jpg", "a/x/1.jpg", "b/10.jpg", "b/2.jpg", "ä/1.jpg"]
    assert store.labels.tolist() == [0, 1, 1, 2, 2, 3]


def test_only_images_count_whatever_the_case_of_their_ending():
    _touch("in/a/1.JPG", "in/a/2.Png", "in/a/notes.txt", "in/a/3.jpg.bak", "in/top.jpg")
    store = FolderStore("in")
    assert store.files == ["a/1.JPG", "a/2.Png"]
    assert store.notes == ("in: left out: 1 .bak, 1 .txt", "in: left out: 1 image in no subfolder")


def test_a_class_without_images_keeps_its_number():
    _touch("in/a/1.jpg", "in/c/1.jpg")
    os.mkdir("in/b")
    store = FolderStore("in")
    assert store.manifest.classes == ["a", "b", "c"]
    assert store.manifest.class_counts == [1, 0, 1]


@pytest.mark.parametrize("inside", [[], ["a"], ["a", "b/c"]])
def test_a_folder_without_images_is_named(inside):
    os.mkdir("in")
    for name in inside:
        os.makedirs(f"in/{name}")
    with pytest.raises(DataError, match=r"D110.*in: no image in any subfolder"):
        FolderStore("in")


@pytest.mark.parametrize("data", [b"just text", b"", b"\xff\xd8 only the start of a jpeg"])
def test_a_text_file_named_like_an_image_is_reported(data):
    Path("in/a").mkdir(parents=True)
    Path("in/a/1.jpg").write_bytes(data)
    with pytest.raises(DataError, match=r"D106.*in/a/1\.jpg.*not a readable image"):
        FolderStore("in")


def test_a_written_folder_has_one_subfolder_per_class_and_files_by_record():
    names = {"dog/000000000.png", "cat/000000001.png", "dog/000000002.png"}
    assert _written(["cat", "dog"], [1, 0, 1]) == names


@pytest.mark.parametrize("name", [".", "..", "", "a/b", ".hidden"])
def test_a_class_that_no_folder_can_be_is_refused(name):
    writer = FolderWriter("out", fields=FIELDS, num_records=1)
    with pytest.raises(DataError, match=r"D114.*rename the class"):
        writer.close(Manifest(1, FIELDS, [name]))
    writer.abort()


IMAGE, LABEL = FIELDS["image"], FIELDS["label"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"x": LABEL}, r"cannot hold \['x'\]"),
        ({"image": Field("float32", (3, 4, 4)), "label": LABEL}, "float32"),
        ({"image": Field("uint8", (4, 4)), "label": LABEL}, r"\[4, 4\]"),
        ({"image": IMAGE, "label": Field("float32", ())}, "float32"),
        ({"image": IMAGE, "label": Field("int64", (2,))}, r"\[2\]"),
    ],
)
def test_fields_that_are_no_labeled_images_are_refused(fields, words):
    with pytest.raises(DataError, match=rf"D114.*{words}"):
        FolderWriter("out", fields=fields, num_records=1)
    assert os.listdir() == []
