"""Classes of validation data, numbered as the training data numbers them."""

from pathlib import Path

import pytest

from framework.contracts.records import Field, Manifest, notes_of
from framework.data import dali, folder, hdf5, lmdb
from framework.data.fields import agree_on_classes, with_agreed_classes
from framework.errors import DataError
from framework.input.folder import FolderInput
from framework.pack import pack_store, packing
from framework.pack.preparation import Preparation
from framework.store.hdf5_store import HDF5Writer
from framework.store.lmdb_store import LMDBWriter
from tests.cli.command import is_one_error_line, paceline
from tests.conftest import make_context
from tests.contract.cases import jpeg, micros

FIELDS = {"image": Field("uint8", (3, None, None), "image"), "label": Field("int64", ())}


def manifest(classes, counts=(), fields=FIELDS):
    return Manifest(3, fields, classes, counts)


def write_classes(root, classes, count=2):
    """Write ``count`` images into a subfolder for each class, and return ``root``."""
    for number, name in enumerate(classes):
        Path(root, name).mkdir(parents=True)
        for image in range(count):
            Path(root, name, f"{name}{image}.jpg").write_bytes(jpeg(10 * number + image, 8, 8))
    return root


def make_source(kind, root):
    context = make_context(batch_size=4, training=False)
    if kind == "folder":
        return folder.folder_source(root, context=context)
    suffix, writer = (".lmdb", LMDBWriter) if kind == "lmdb" else (".h5", HDF5Writer)
    path = f"{root}-{kind}{suffix}"
    source = FolderInput(root, None, None)
    pack_store.pack(packing.Packing(source, writer, path, Preparation("raw"), suffix=suffix))
    if kind == "dali":
        pytest.importorskip("nvidia.dali")
        return dali.dali_source(path, 2, context=context)
    return {"hdf5": hdf5.hdf5_source, "lmdb": lmdb.lmdb_source}[kind](path, context=context)


@pytest.mark.parametrize("kind", ["hdf5", "lmdb", "folder", "dali"])
def test_validation_labels_are_mapped_by_name_in_every_data_choice(kind):
    train = make_source(kind, write_classes("train", ["ant", "bee", "cat"], 1))
    val = make_source(kind, write_classes("val", ["bee", "cat"]))
    val = with_agreed_classes(train.manifest, val)
    assert [batch["label"] for batch, *_ in micros(val)] == [[1, 1, 2, 2]]
    assert val.sample(4)["label"].tolist() == [1, 1, 2, 2]
    assert (val.manifest.classes, val.manifest.class_counts) == (["ant", "bee", "cat"], [0, 2, 2])
    words = "mapped by name: bee 0 -> 1, cat 1 -> 2; without a validation record: ant"
    assert words in notes_of(val)[0]
    assert with_agreed_classes(train.manifest, train) is train
    for source in (train, val):
        source.close()


@pytest.mark.parametrize(
    ("train", "val"),
    [(["a", "b", "c"], ["a", "b"]), ([], ["a"]), (["a"], []), (["0", "1"], ["0", "1", "2"])],
    ids=["the same numbers", "none in training", "none in validation", "plain numbers"],
)
def test_labels_that_agree_already_are_not_mapped(train, val):
    assert agree_on_classes(manifest(train), manifest(val)) is None


def test_a_class_that_only_validation_has_is_refused_with_both_lists_unless_it_has_no_record():
    words = r"D190.*the class zebra that training.*: ant, bee; validation's: bee, zebra"
    with pytest.raises(DataError, match=words):
        agree_on_classes(manifest(["ant", "bee"]), manifest(["bee", "zebra"]))
    validation = manifest(["a", "b", "c"], [0, 1, 1])
    assert agree_on_classes(manifest(["b", "c"]), validation) == [-1, 0, 1]


RECIPE = """# @package _global_
dataset: packed
prepare:
  train: {input: {_target_: framework.input.folder.FolderInput, path: photos/train, \
classes: null, label_pattern: null}}
  val: {input: {_target_: framework.input.folder.FolderInput, path: photos/val, \
classes: null, label_pattern: null}}
"""


def test_a_class_that_only_validation_has_is_named_before_anything_is_packed():
    write_classes("photos/train", ["ant", "bee"])
    write_classes("photos/val", ["bee", "zebra"])
    Path("mine/recipes").mkdir(parents=True)
    Path("mine/recipes/animals.yaml").write_text(RECIPE)
    done = paceline("train", "--config-dir=mine", "recipes=animals")
    assert is_one_error_line(done, "D190"), done.err
    assert not Path("packed").exists()
