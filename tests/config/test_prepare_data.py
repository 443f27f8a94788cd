from pathlib import Path

import numpy as np
import pytest

from framework.config.prepare_data import STORE_INPUT, input_of, packed_from_others, prepare
from framework.errors import ConfigError
from framework.input.digits_input import DigitsInput
from framework.media.decode import encode_png
from framework.pack.pack_store import pack
from framework.pack.packing import Packing
from framework.store.hdf5_store import HDF5Writer
from framework.store.lmdb_store import LMDBWriter
from tests.conftest import make_records, write_store
from tests.faults.forked import Command

DIGITS = {"_target_": "framework.input.digits_input.DigitsInput"}


HDF5 = {"_target_": "framework.store.hdf5_store.HDF5Writer"}
LMDB = {"_target_": "framework.store.lmdb_store.LMDBWriter"}


def splits(tmp_path, writer=HDF5):
    paths = {split: str(tmp_path / f"{split}.store") for split in ("train", "val")}
    return {
        "dataset": str(tmp_path),
        "data": {**paths, "writer": writer},
        "prepare": {split: {"input": {**DIGITS, "split": split}} for split in paths},
    }


def packed(config):
    """Return what ``prepare`` asks to pack: (split, path)."""
    asked = []
    prepare(config, (), lambda made: asked.append((made.source.source.split, made.path)), print)
    return asked


def test_everything_that_is_missing_is_packed(tmp_path):
    config = splits(tmp_path)
    assert packed(config) == [(split, config["data"][split]) for split in ("train", "val")]


@pytest.mark.parametrize(("block", "kind"), [(HDF5, HDF5Writer), (LMDB, LMDBWriter)])
def test_it_is_packed_by_the_writer_of_the_data_that_was_chosen(tmp_path, block, kind):
    made = []

    def make(packing):
        fields = packing.source.manifest.fields
        made.append(packing.make_writer(packing.path, fields=fields, num_records=1))

    prepare(splits(tmp_path, block), (), make, print)
    for writer in made:
        writer.abort()
    assert [type(writer) for writer in made] == [kind, kind]


@pytest.mark.parametrize("dataset", [None, "elsewhere"])
def test_a_store_that_is_named_elsewhere_is_not_ours_to_make(tmp_path, dataset):
    assert packed({**splits(tmp_path), "dataset": dataset}) == []


def test_what_was_packed_from_something_else_is_found(tmp_path):
    config = splits(tmp_path)
    for path in (config["data"][split] for split in ("train", "val")):
        pack(Packing(DigitsInput("val"), HDF5Writer, path))
    for name, count in (
        *(("other", 2), ("digits", 0), ("digits/", 0), ("digi", 2), ("sklearn.digits", 2)),
    ):
        for split in ("train", "val"):
            config["prepare"][split]["input"] = {**DIGITS, "path": name}
        assert len(list(packed_from_others(config))) == count, name
    for split in ("train", "val"):
        Path(config["data"][split]).write_bytes(b"no store")
    assert list(packed_from_others(config)) == []
    assert list(packed_from_others({**config, "prepare": None})) == []


@pytest.mark.parametrize(
    "change",
    [
        {"prepare": None},
        {"data": {"train": None, "val": None, "writer": HDF5}},
        {"prepare": {"train": None}},
    ],
)
def test_nothing_is_packed_if_nothing_is_described(tmp_path, change):
    assert packed({**splits(tmp_path), **change}) == []


def test_notes_and_errors_name_the_keys_of_training(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (3, 64, 64), np.uint8)
    for name, image in (("image", noise), ("mask", np.zeros((1, 64, 64), np.uint8))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.png").write_bytes(encode_png(image))
    trees = {"image": str(tmp_path / "image"), "mask": str(tmp_path / "mask")}
    source = {"_target_": "framework.input.pairs.PairsInput", "fields": trees, "unmatched": "fail"}
    config = splits(tmp_path)
    config["prepare"] = {"train": {"input": source}}
    notes = []
    with pytest.raises(ConfigError, match=r"; set \+\+prepare\.train\.pack\.encode=png"):
        prepare(config, (), _refuse_encoding, notes.append)
    assert "'++prepare.train.input.labels=[mask]'" in notes[0]
    source["labels"] = ["sharp"]
    with pytest.raises(ConfigError, match=r"prepare\.train\.input\.labels = sharp"):
        prepare(config, (), _refuse_encoding, notes.append)


def _refuse_encoding(*_):
    raise ConfigError(141, "pack.encode = jpeg", "no", "set pack.encode=png")


def test_what_is_packed_can_be_read(tmp_path):
    config = splits(tmp_path)
    config["prepare"].pop("train")
    made = []
    prepare(config, (), lambda packing: made.append(pack(packing).manifest), print)
    assert made[0].num_records == len(DigitsInput("val").arrays[1])
    assert Path(config["data"]["val"]).exists()


def test_what_prepares_data_is_checked_like_every_part(tmp_path):
    config = splits(tmp_path)
    config["prepare"]["train"] = {"input": {"_target_": "os.mkdir", "path": "canary"}}
    with pytest.raises(ConfigError, match=r"C105\]: prepare.train.input._target_ = os.mkdir"):
        packed(config)


def test_what_prepares_data_has_an_input_and_says_how_it_is_packed(tmp_path):
    config = splits(tmp_path)
    config["prepare"]["train"] = {**DIGITS, "split": "train"}
    with pytest.raises(ConfigError, match=r"^error\[C153\]: prepare.train = .*give \{input:"):
        packed(config)


def test_of_two_runs_that_want_the_same_store_one_waits_for_the_other():
    words = ["train", "recipes=digits", "dataset=packed", "max_steps=1", "sink=[]"]
    with (
        Command(*words, "hydra.run.dir=one") as first,
        Command(*words, "hydra.run.dir=two") as second,
    ):
        ends = [first.wait(), second.wait()]
    assert [done.code for done in ends] == [0, 0], [done.err for done in ends]
    assert sorted(path.name for path in Path("packed").iterdir()) == ["train.h5", "val.h5"]


def sets(tmp_path, **blocks):
    """Return a configuration with two validation sets, and these blocks of ``prepare.val``."""
    config = splits(tmp_path)
    val = {name: str(tmp_path / f"{name}.store") for name in ("clean", "noisy")}
    source = {"_target_": "framework.data.hdf5.hdf5_source"}
    return {
        **config,
        "data": {**config["data"], "val": val, "source": source},
        "prepare": {**config["prepare"], "val": blocks},
    }


BLOCK = {"input": {**DIGITS, "split": "val"}}


def test_each_validation_set_is_packed_from_a_block_of_its_own(tmp_path):
    config = sets(tmp_path, clean=BLOCK, noisy=BLOCK)
    val = config["data"]["val"]
    expected = [("train", config["data"]["train"]), ("val", val["clean"]), ("val", val["noisy"])]
    assert packed(config) == expected


def test_a_block_for_a_set_that_is_not_named_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"C339\]: prepare\.val\.dirty: .*clean, noisy"):
        packed(sets(tmp_path, dirty=BLOCK))


@pytest.mark.parametrize("is_block", [False, True], ids=["name", "block"])
def test_a_function_that_adds_fields_must_be_allowed(is_block):
    name = "tests.input.test_store.describe"
    add = {"_target_": name, "_partial_": True, "unit": "mm"} if is_block else name
    path = write_store("x.h5", make_records(3))
    block = {"_target_": STORE_INPUT, "path": path, "add": add, "kinds": {"boxes": "boxes"}}
    with pytest.raises(ConfigError, match=rf"C105.*input\.add\._target_ = {name}: not on the list"):
        input_of("input", block, {}, ())
    source = input_of("input", block, {}, ("tests.",))
    names = [bytes(text).decode() for text in source.read(0, 3).records["name"]]
    assert names == [f"record-{n} {'mm' if is_block else 'px'}" for n in range(3)]
