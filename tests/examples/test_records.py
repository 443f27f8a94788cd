"""Records that the examples draw, or make of files."""

import io
from pathlib import Path

import cv2
import numpy as np
import pytest
import soundfile
from paceline_examples import photo_shapes
from paceline_examples.blurred_pairs import blurred
from paceline_examples.drawn_chips import drawn_chips
from paceline_examples.drawn_lines import FONTS, drawn_lines, picture
from paceline_examples.noisy_waves import noisy_waves
from paceline_examples.photo_shapes import CLASSES, detect_scenes, segment_scenes
from paceline_examples.short_sounds import KINDS, RATE, short_sounds, sound

from framework.errors import ConfigError, DataError
from framework.media.decode import decode
from tests.contract.cases import jpeg

# drawn lines


def line(item=0, seed=0, max_words=3):
    (record,) = drawn_lines(item, seed, max_words)
    return record


def test_a_row_of_the_image_is_a_column_of_the_picture():
    image = line()["image"]
    assert (image.dtype, image.shape[1], image.flags.c_contiguous) == (np.uint8, 32, True)


def test_the_ink_is_inside_the_picture_in_every_font():
    for seed in range(8 * len(FONTS)):
        gray = picture(np.random.default_rng(seed), "jhgl")
        edges = np.concatenate([gray[0], gray[-1], gray[:, 0], gray[:, -1]]).astype(float)
        assert np.percentile(gray, 99) > 1.2 * np.percentile(edges, 90)


def test_texts_are_words_and_numbers_of_the_alphabet():
    texts = [line(item)["text"] for item in range(50)]
    assert {len(text.split()) for text in texts} == {1, 2, 3}
    assert set("".join(texts)) <= set("abcdefghijklmnopqrstuvwxyz0123456789 ")


@pytest.mark.parametrize("other", [{"item": 1}, {"seed": 1}])
def test_the_same_line_is_the_same_and_others_are_not(other):
    assert np.array_equal(line()["image"], line()["image"])
    assert line()["text"] != line(**other)["text"]


# drawn chips


def drawn(item, seed=0, size=64):
    (record,) = drawn_chips(item, seed, size)
    pixels = cv2.imdecode(np.frombuffer(record["image"], np.uint8), cv2.IMREAD_COLOR)
    return record, pixels.astype(int)


@pytest.mark.parametrize("item", range(6))
def test_a_photo_of_a_good_or_a_spoilt_one(item):
    record, pixels = drawn(item)
    assert record["label"] == item % 2
    assert pixels.shape == (64, 64, 3)
    assert pixels.std() > 10


def test_the_same_item_is_the_same_photo_and_another_seed_another():
    assert drawn(3)[0] == drawn(3)[0]
    assert drawn(3)[0]["image"] != drawn(3, seed=1)[0]["image"] != drawn(5, seed=1)[0]["image"]


def test_spoilt_ones_have_brown_spots():
    darkest = [
        [np.percentile(drawn(item, size=128)[1].sum(2), 1) for item in range(start, 24, 2)]
        for start in (0, 1)
    ]
    assert np.median(darkest[0]) > 1.2 * np.median(darkest[1])


# noisy waves


def _waves(item=0, seed=0, noise=0.5):
    chunks = list(noisy_waves(item, seed, length=256, num_chunks=8, noise=noise))
    return {name: np.stack([chunk[name] for chunk in chunks]) for name in ("noisy", "clean")}


def test_a_recording_is_cut_into_chunks():
    waves = _waves()
    assert waves["noisy"].shape == waves["clean"].shape == (8, 1, 256)
    assert waves["noisy"].dtype == waves["clean"].dtype == np.float32


def test_tone_and_noise_are_as_loud_as_configured():
    waves = _waves()
    assert np.mean(waves["clean"] ** 2) == pytest.approx(0.5, rel=1e-3)
    assert np.std(waves["noisy"] - waves["clean"]) == pytest.approx(0.5, rel=0.1)


def test_the_same_recording_is_the_same_and_others_are_not():
    assert np.array_equal(_waves()["noisy"], _waves()["noisy"])
    assert not np.array_equal(_waves()["clean"], _waves(item=1)["clean"])
    assert not np.array_equal(_waves()["clean"], _waves(seed=1)["clean"])


# blurred pairs


def _pairs(split="train", size=8, val_every=2, count=20):
    paths = [f"{number}.jpg" for number in range(count)]
    for number, path in enumerate(paths):
        Path(path).write_bytes(jpeg(number))
    return {path: list(blurred(path, split, val_every, size, 1.5)) for path in paths}


def test_every_file_is_in_one_split_and_one_only():
    train, val = _pairs("train"), _pairs("val")
    assert all(len(train[path]) + len(val[path]) == 1 for path in train)
    assert 0 < sum(map(len, val.values())) < 20


def test_a_pair_is_the_middle_of_the_image_and_that_blurred():
    path, pairs = next((path, pairs) for path, pairs in _pairs().items() if pairs)
    sharp, blurry = pairs[0]["sharp"], pairs[0]["blurry"]
    assert np.array_equal(sharp, decode(Path(path).read_bytes(), 3)[4:12, 2:10].transpose(2, 0, 1))
    assert (blurry.shape, blurry.dtype, blurry.flags.c_contiguous) == ((3, 8, 8), np.uint8, True)
    assert np.abs(np.diff(blurry.astype(int))).sum() < np.abs(np.diff(sharp.astype(int))).sum()


def test_images_that_are_too_small_give_nothing():
    assert not any(_pairs(size=13).values())


def test_a_bad_image_is_named():
    Path("x.jpg").write_bytes(b"text")
    with pytest.raises(DataError, match=r"D106.*x\.jpg"):
        list(blurred("x.jpg", "train", 10**9, 8, 1.5))


# photo shapes


def segment(item, split="train", size=48, most=4):
    (record,) = segment_scenes(item, split, size, most)
    return record


def detect(item, split="train", size=48, most=4):
    (record,) = detect_scenes(item, split, size, most)
    return record


def test_an_image_and_its_label_map_have_one_size():
    record = segment(0)
    assert (record["image"].shape, record["image"].dtype) == ((48, 48, 3), np.uint8)
    assert (record["mask"].shape, record["mask"].dtype) == ((48, 48), np.uint8)


def test_every_class_occurs_and_outlines_have_none():
    values = {int(value) for item in range(40) for value in np.unique(segment(item)["mask"])}
    assert values == {*range(len(CLASSES) + 1), 255}


@pytest.mark.parametrize("item", range(12))
def test_the_box_is_around_the_shape_of_the_same_scene(item):
    mask, scene = segment(item, most=1)["mask"], detect(item, most=1)
    assert set(mask[(mask > 0) & (mask < 255)].tolist()) == {x + 1 for x in scene["label"].tolist()}
    for left, top, right, bottom in scene["boxes"].astype(int):
        rows, columns = np.nonzero(mask)  # with the outline, whose outer half is outside of the box
        around = [left - columns.min(), top - rows.min(), columns.max() + 1 - right]
        assert {*around, rows.max() + 1 - bottom} <= {0, 1}


def test_there_are_scenes_with_no_shape_and_with_the_most():
    counts = [len(detect(item, most=3)["boxes"]) for item in range(40)]
    assert (min(counts), max(counts)) == (0, 3)


def test_the_same_item_is_the_same_scene_and_others_are_not():
    assert np.array_equal(segment(3)["image"], segment(3)["image"])
    for other in (segment(4), segment(3, split="val")):
        assert not np.array_equal(segment(3)["image"], other["image"])


@pytest.mark.parametrize(("split", "color"), [("train", 40), ("val", 200)])
def test_splits_show_different_parts_of_the_photographs(monkeypatch, split, color):
    photograph = np.full((60, 150, 3), 40, np.uint8)
    photograph[:, 100:] = 200
    monkeypatch.setattr(photo_shapes, "_photographs", lambda: [photograph, photograph])
    images = np.stack([segment(item, split, most=0)["image"] for item in range(20)])
    assert np.abs(images.astype(int) - color).max() < 40  # the noise


def test_an_unknown_split_is_refused():
    with pytest.raises(ConfigError, match=r"C116.*split = test"):
        segment(0, split="test")


# short sounds


def heard(item, seed=0):
    (record,) = short_sounds(item, seed)
    samples, rate = soundfile.read(io.BytesIO(record["audio"]))
    return record, samples, rate


def test_a_sound_is_a_wav_file_of_0_2_to_2_seconds():
    lengths = []
    for item in range(60):
        _, samples, rate = heard(item)
        assert (rate, samples.ndim) == (RATE, 1)
        assert 0.05 < np.abs(samples).max() < 1
        lengths.append(len(samples) / rate)
    assert 0.2 <= min(lengths) < 0.4
    assert 1.2 < max(lengths) <= 2.0


def test_every_kind_comes_equally_often():
    labels = [heard(item)[0]["label"] for item in range(16)]
    assert labels == 2 * list(range(len(KINDS)))


@pytest.mark.parametrize(("kind", "direction"), [("rise", 1), ("fall", -1), ("steady", 0)])
def test_the_pitch_follows_the_kind(kind, direction):
    samples = sound(np.random.default_rng(0), kind, RATE)
    parts = samples[: RATE // 4], samples[-RATE // 4 :]
    first, last = (np.abs(np.fft.rfft(part)).argmax() for part in parts)
    assert np.sign(round((last - first) / 20)) == direction


@pytest.mark.parametrize("other", [{"item": 8}, {"item": 0, "seed": 1}])
def test_the_same_sound_is_the_same_and_others_are_not(other):
    assert heard(0)[0] == heard(0)[0]
    assert heard(0)[0]["audio"] != heard(**other)[0]["audio"]
