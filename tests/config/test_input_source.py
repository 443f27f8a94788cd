"""Batches of an input's records, in order, with or without bad items."""

import csv
import json
import threading
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

import framework
from framework.config import input_source
from framework.config.input_source import ItemRange, PreparedInput, as_dicts, in_images, preparation
from framework.contracts import prediction
from framework.contracts.data import SourceContext
from framework.contracts.records import Chunk, Field, Manifest
from framework.data.reader import BatchReader
from framework.errors import ConfigError, DataError
from framework.input.folder import FolderInput
from framework.media.decode import decode, encode_png
from framework.order.batches import Order
from framework.pack.preparation import Preparation
from framework.store.folder_store import FolderStore
from framework.store.open_store import ChunkStore, open_store
from framework.transform import none, resize
from tests.cli.command import paceline
from tests.saved_runs import digits_run

FIELDS = {"image": Field("uint8", (1, None, None), "image")}


class Several:
    """An input whose item n becomes n records."""

    manifest = Manifest(4, {"y": Field("int64", ())}, source="several")

    def read(self, start, stop):
        if start <= 2 < stop and self.is_bad:
            raise DataError(101, "item 2", "is bad", "repair it")
        numbers = [n for n in range(start, stop) for _ in range(n)]
        return Chunk({"y": np.array(numbers, np.int64)}, [f"{n}" for n in numbers])

    def __init__(self, is_bad=False):
        self.is_bad = is_bad

    def name(self, index):
        return f"item {index}"


def images(*bad, count=7):
    for number in range(count):
        pixels = encode_png(np.full((1, 4, 4), number, np.uint8))
        Path("f").mkdir(exist_ok=True)
        Path(f"f/{number}.png").write_bytes(b"none" if number in bad else pixels)
    return FolderInput("f", None, None, labeled=False)


def source_of(given, fields, ranges, skip=False, workers=0):
    order = partial(Order, batch_size=2)
    context = SourceContext(order, none.NoTransform(), training=False, num_workers=workers)
    return input_source.InputSource(given, fields, ranges, context, skip)


RANGES = [ItemRange(0, 0, 5), ItemRange(1, 5, 7)]


@pytest.mark.parametrize("workers", [0, 2])
def test_files_are_read_in_order_part_by_part(workers):
    source = source_of(images(), FIELDS, RANGES, workers=workers)
    batches = [micro.batch for micro in source.batches(0)]
    numbers = [batch["image"][:, 0, 0, 0].tolist() for batch in batches]
    assert numbers == [[0, 1], [2, 3], [4], [5, 6]]
    assert [batch[input_source.PART] for batch in batches] == [0, 0, 0, 1]
    assert source.parts[1].store.key(0) == "5.png"
    assert "decode" in source.stages()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_bad_file_is_left_out_of_its_batch_alone(workers):
    source = source_of(images(0, 3), FIELDS, RANGES, skip=True, workers=workers)
    batches = [micro.batch["image"][:, 0, 0, 0].tolist() for micro in source.batches(0)]
    assert batches == [[1], [2], [4], [5, 6]]
    assert [item.item for item in source.parts[0].bad] == [0, 3]
    assert [item.error for item in source.parts[0].bad] == ["D106", "D106"]


def test_an_item_may_become_any_number_of_records():
    ranges = [ItemRange(0, 0, 1), ItemRange(1, 1, 4)]
    source = source_of(Several(), Several.manifest.fields, ranges)
    assert [micro.batch["y"].tolist() for micro in source.batches(0)] == [[1, 2], [2, 3], [3, 3]]
    assert not source.parts[0].store.manifest.num_records  # a part without records has no batch
    assert source.parts[1].item_numbers == [1, 2, 2, 3, 3, 3]
    assert source.parts[1].store.name(1) == "item 2"


def test_closing_early_leaves_no_thread():
    before = threading.active_count()
    batches = source_of(Several(), Several.manifest.fields, [ItemRange(0, 0, 4)]).batches(0)
    next(batches)
    batches.close()
    assert threading.active_count() == before


def test_the_thread_that_reads_ahead_leaves_the_cores_to_the_step():
    counts = []

    class Counting(Several):
        def read(self, start, stop):
            counts.append(torch.get_num_threads())
            return super().read(start, stop)

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        ranges = [ItemRange(0, 0, 2), ItemRange(1, 2, 4)]
        source = source_of(Counting(), Several.manifest.fields, ranges)
        assert len([*source.batches(0)]) == 4
    finally:
        torch.set_num_threads(before)
    assert set(counts) == {1}


# ---- records that are prepared as those of training


def deep_images():
    rng = np.random.default_rng(0)
    Path("d").mkdir()
    for number in range(3):
        pixels = rng.integers(0, 65536, (9, 12 + number), dtype=np.uint16)
        cv2.imwrite(f"d/{number}.png", pixels)
    return FolderInput("d", None, None, labeled=False)


@pytest.mark.parametrize(
    ("options", "target", "shape"),
    [
        ({"encode": "png", "bit_depth": 8, "resize": 6}, "label", (6, 8)),
        ({"encode": "jpeg", "bit_depth": 8, "size": [5, 7], "quality": 80}, "label", (5, 7)),
        ({"encode": "png", "bit_depth": 8, "resize": 6}, "mask", (9, 12)),  # maps keep their size
    ],
    ids=["resized", "JPEG", "of maps"],
)
def test_images_are_prepared_as_packing_did(options, target, shape):
    source = deep_images()
    fields = {"label": Field("int64", ()), "mask": Field("uint8", (1, 9, 12), kind="labels")}
    train = Manifest(3, fields, options=options)
    prepare = preparation(source.manifest, train, scales=target != "mask")
    prepared = PreparedInput(source, prepare)
    assert (prepared.name(1), list(prepared.item_files(1))) == ("d/1.png", ["d/1.png"])
    sizes = {} if target == "mask" else options
    expected = PreparedInput(source, Preparation(**{"encode": "png", "bit_depth": 8, **sizes}))
    image, same = (given.read(0, 1).records["image"][0] for given in (prepared, expected))
    assert image == same
    assert decode(image, 1).shape == (*shape, 1)


def test_what_packing_did_not_change_is_left_as_it_is():
    given = deep_images().manifest
    assert preparation(given, Manifest(3, {}, options={"encode": "raw"}), scales=True) is None
    packed = replace(given, options={"encode": "raw"})
    assert preparation(packed, Manifest(3, {}, options={"size": [2, 2]}), scales=True) is None


def test_records_of_a_store_are_prepared_when_they_are_read():
    source = deep_images()
    train = Manifest(3, FIELDS, options={"encode": "raw", "bit_depth": 8, "size": [5, 7]})
    store = input_source.PreparedStore(FolderStore(".", None), train)
    expected = PreparedInput(source, preparation(source.manifest, train, scales=True)).read(0, 3)
    read = store.read(torch.tensor([2, 0]))["image"]
    assert [bytes(image) for image in read] == [expected.records["image"][i] for i in (2, 0)]
    Path("d/1.png").write_bytes(b"none")
    with pytest.raises(DataError, match=r"d/1\.png"):
        store.read(torch.arange(3))


# ---- predictions from Python


PIXELS = np.arange(64, dtype=np.uint8).reshape(8, 8)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("predict_images")
    return framework.load(digits_run(folder, "max_steps=2"))


def test_images_of_every_form_are_predicted_alike(run):
    image = pytest.importorskip("PIL.Image")
    Path("a.png").write_bytes(encode_png(PIXELS[None]))
    forms = [["a.png"], [Path("a.png")], [PIXELS], [PIXELS[:, :, None]], [image.fromarray(PIXELS)]]
    forms.append(torch.from_numpy(PIXELS[None, None]))
    first, *others = [run.predict(images) for images in forms]
    assert all(other == first for other in others)
    assert first[0]["class"] in run.classes
    assert sum(first[0]["probabilities"].values()) == pytest.approx(1)
    assert run.predict([]) == []


def test_floats_are_taken_as_the_model_gets_them(run):
    pixels = torch.from_numpy(PIXELS[None, None])
    prepared = run.finish({"image": pixels, "index": torch.zeros(1)}, 0)
    assert run.predict(prepared["image"]) == run.predict(pixels)


def test_16_bits_are_predicted_as_packing_kept_them(tmp_path_factory, monkeypatch):
    image = pytest.importorskip("PIL.Image")
    monkeypatch.chdir(folder := tmp_path_factory.mktemp("deep"))
    deep = np.random.default_rng(0).integers(0, 65536, (6, 16, 16), dtype=np.uint16)
    for number, pixels in enumerate(deep):
        path = Path("in", "ab"[number % 2], f"{number}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode_png(pixels[None]))
    size = ("pack.size=[8,8]", "pack.encode=raw", "pack.bit_depth=16")
    for split in ("train", "val"):
        out = f"output.path=digits/{split}.h5"
        assert paceline("pack", "input=folder", "input.path=in", out, *size).code == 0
    deep_run = framework.load(digits_run(folder, "max_steps=2", "batch_size=4"))
    with closing(open_store("digits/val.h5")) as store:
        packed = store.read(torch.tensor([5]))["image"]
    colors = np.stack([pixels] * 3, 2)
    forms = [packed, [path], [pixels], [colors], [image.fromarray(pixels)]]
    first, *others = [deep_run.predict(images) for images in forms]
    assert all(other == first for other in others)


@pytest.mark.parametrize(
    "images",
    ["a", [3], [np.zeros((2, 2))], [np.zeros((2, 2, 4), np.uint8)], torch.ones(1, 1, 8, 8).int()],
    ids=["text", "number", "floats", "alpha", "integers"],
)
def test_what_is_no_image_is_refused(run, images):
    with pytest.raises(ConfigError, match="C360"):
        run.predict(images)


def test_a_damaged_file_is_refused(run):
    Path("bad.png").write_text("x")
    with pytest.raises(DataError, match=r"D106\]: bad.png"):
        run.predict(["bad.png"])


def test_an_objective_that_does_not_predict_is_refused(run):
    class Other:
        def __call__(self, model, batch):
            raise NotImplementedError

    other = framework.load(run.run_dir)
    other.__dict__["objective"] = Other()
    with pytest.raises(ConfigError, match=r"C351.*does not say what its model predicts"):
        other.predict([PIXELS])


def test_a_model_of_other_fields_is_refused_with_those_it_takes(run):
    assert list(input_source.ImageInput([PIXELS], "x").read(0, 1).records) == ["x"]
    manifest = Manifest(1, {"x": Field("uint8", (1, 8, 8))}, source="x.npz")
    with pytest.raises(ConfigError, match=r"C352\]: x.npz: has no field 'image'.*it has x"):
        run.input_fields(manifest)


def test_other_kinds_of_predictions_come_as_dicts():
    scored = prediction.ScoredBoxes(torch.ones(1, 4), torch.tensor([0.5]), torch.tensor([1]))
    (boxes,) = as_dicts(prediction.PredictedBoxes([scored]), None, ["a", "b"])
    assert boxes["classes"] == ["b"]
    assert next(as_dicts(prediction.PredictedTexts(["x"]), None, [])) == {"text": "x"}
    (numbers,) = as_dicts(prediction.PredictedNumbers(torch.ones(1, 2)), None, [])
    assert numbers["numbers"].tolist() == [1, 1]
    pixels = input_source.as_pixels(prediction.PredictedImages(torch.tensor([[[[0.0, 1.0]]]])))[0]
    assert pixels.tolist() == [[[0], [255]]]


# --------------------------------------------------------------------------- images that are scaled


@pytest.fixture(scope="module")
def shrunk(tmp_path_factory):
    """Train a run on images of several sizes that were cut and scaled to 12 x 8 by packing."""
    folder = tmp_path_factory.mktemp("shrunk")
    generator = np.random.default_rng(0)
    for number in range(16):
        height, width = generator.integers(20, 60, 2).tolist()
        level = 60 + 120 * (number % 2)
        noise = generator.integers(-50, 50, (1, height, width))
        path = folder / "photos" / "ab"[number % 2] / f"{number:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode_png((level + noise).astype(np.uint8)))
    for path, size in (("a.h5", "[12,8]"), ("other.h5", "[24,16]")):
        words = ("pack.encode=raw", f"pack.size={size}", f"output.path={path}", "workers=0")
        done = paceline("pack", "input.path=photos", *words, cwd=folder)
        assert done.code == 0, done.err
    words = ("data.train=a.h5", "data.val=a.h5", "model=resnet9", "model.width=4", "epochs=4")
    words += ("batch_size=8", "workers.num=0", "hydra.run.dir=run")
    done = paceline("train", *words, cwd=folder)
    assert done.code == 0, done.err
    return folder


def probabilities(name):
    """Return the probability of class a of each row of a table."""
    with open(name, newline="") as file:
        rows = [(row["class"], float(row["probability"])) for row in csv.DictReader(file)]
    return [value if name == "a" else 1 - value for name, value in rows]


def test_images_are_scaled_as_packing_scaled_those_of_training(shrunk, monkeypatch):
    monkeypatch.chdir(shrunk)
    words = ("run=run", "input.path=photos", "workers=0")
    done = paceline("predict", *words, "output=files.csv")
    assert done.code == 0, done.err
    assert "note: images are cut and scaled to 12 x 8, as packing did for training" in done.out
    packed = ("run=run", "input=store", "input.path=a.h5", "workers=0")
    done = paceline("predict", *packed, "output=packed.csv")
    assert done.code == 0, done.err
    assert "note: images" not in done.out
    of_files, of_store = (probabilities(name) for name in ("files.csv", "packed.csv"))
    assert len(of_files) == 16
    assert of_files == pytest.approx(of_store, abs=1e-4)
    paths = sorted(Path("photos").rglob("*.png"))
    records = framework.load("run").predict(paths)
    assert [record["probabilities"]["a"] for record in records] == pytest.approx(of_files, abs=1e-4)


@pytest.mark.parametrize("name", ["photos", "other.h5"])
def test_evaluation_prepares_other_data_as_prediction_does(shrunk, monkeypatch, name):
    monkeypatch.chdir(shrunk)
    of_run = evaluated("a.h5")
    other, out = evaluated(name)
    assert "note: images are cut and scaled to 12 x 8, as packing did for training" in out
    assert (of_run[0]["loss"] == pytest.approx(other["loss"], abs=1e-4)) == (name == "photos")
    batch = next(framework.load("run").batches(name))
    assert batch["image"].shape[1:] == (1, 12, 8)


def evaluated(data):
    """Return the means of an evaluation on the CPU, and what was printed."""
    done = paceline("evaluate", "run=run", f"data.val={data}", "workers=0", "output=e")
    assert done.code == 0, done.err
    means = json.loads(Path("e/evaluation.json").read_text())["sets"]["val"]["means"]
    return means, done.out + done.err


# ----------------------------------------------------------------------------- places in the images

SIZES = [(20, 40), (30, 10)]
PLACES = [
    input_source.ImagePlace((20, 40), [0, 10, 20, 20], (8, 8)),
    input_source.ImagePlace((30, 10), [10, 0, 10, 10], (8, 8)),
]


def test_a_place_is_the_window_of_the_transform():
    files = [encode_png(np.zeros((3, *size), np.uint8)) for size in SIZES]
    manifest = Manifest(2, {"image": Field("uint8", (3, None, None), "image")})
    store = ChunkStore(Chunk({"image": files}, ["a", "b"]), manifest, str)

    def order(count):
        return Order(count, batch_size=2)

    transform = resize.Resize([8, 8], crop=True, antialias=True)
    read = BatchReader(store, SourceContext(order, transform, training=False))
    assert input_source.image_places(read, "image", files, torch.arange(2)) == PLACES


def test_maps_and_boxes_are_those_of_the_given_images():
    maps = in_images(prediction.PredictedMaps(torch.ones(2, 8, 8, dtype=torch.uint8)), PLACES)
    assert [numbers.shape for numbers in maps] == SIZES
    scored = prediction.ScoredBoxes(torch.tensor([[0.0, 0, 8, 8]]), torch.ones(1), torch.zeros(1))
    boxes = in_images(prediction.PredictedBoxes([scored, scored]), PLACES)
    assert boxes[0].boxes.tolist() == [[10, 0, 30, 20]]
    assert in_images(prediction.PredictedMaps(torch.ones(1, 8, 8)), None)[0].shape == (8, 8)
