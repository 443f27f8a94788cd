import pytest

from framework.commands.diagnose.storage_rules import (
    decode_jpeg,
    decode_other,
    decode_png,
    decode_webp,
    huge_records,
    order_block,
    pack_dataset,
    pack_folder,
    raw_too_large,
    repack_contiguous,
    repack_smaller,
    small_records,
)
from tests.commands.diagnose.cases import FINE, GB, facts

HUGE = {"image_size": (3000, 4000)}
JPEG = {"codec": "jpeg"}
PNG = {"codec": "png"}
WEBP = {"codec": "webp"}
TINY_FILES = {"record_bytes": 2e3, "even": True, "image_size": (32, 32)}
SMALL = {"settings": {"transform": "resize", "size": (224, 224)}}
CHUNKED = {"form": "hdf5", "encoding": "raw", "image_size": None, "chunk_records": 256}
JPEG_OF_256 = {"encode": "jpeg", "resize": 256}
RAW_OF_224 = {"encode": "raw", "size": [224, 224], "layout": "hwc"}


@pytest.mark.parametrize(
    ("rule", "changes", "wanted"),
    [
        (repack_smaller, {"storage": HUGE, **SMALL}, RAW_OF_224),
        (
            repack_smaller,
            {"storage": HUGE, **SMALL, "machine": {"memory_bytes": GB}},
            {"encode": "jpeg", "resize": 256},
        ),
        (
            repack_smaller,
            {"storage": HUGE, "settings": {"transform": "random_resized_crop", "size": (224, 224)}},
            {"encode": "jpeg", "resize": 448},
        ),
        (repack_smaller, {"storage": {"image_size": (300, 400)}, **SMALL}, None),
        (repack_smaller, {"storage": HUGE}, None),
        (repack_smaller, {"storage": {**HUGE, "form": "other"}, **SMALL}, None),
        (repack_smaller, {"storage": HUGE, **SMALL, "rates": FINE}, None),
        (repack_smaller, {"storage": {**HUGE, "record_bytes": 3e6}, **SMALL}, None),
        (repack_smaller, {"storage": {**HUGE, "encoding": "raw"}, **SMALL}, None),
        (huge_records, {"storage": {**HUGE, "record_bytes": 3e6}, **SMALL}, RAW_OF_224),
        (huge_records, {"storage": HUGE, **SMALL}, None),
        (raw_too_large, {"storage": {**HUGE, "encoding": "raw"}, **SMALL}, RAW_OF_224),
        (raw_too_large, {"storage": HUGE, **SMALL}, None),
        (decode_jpeg, {"storage": JPEG, **SMALL}, RAW_OF_224),
        (decode_jpeg, {"storage": PNG, **SMALL}, None),
        (decode_jpeg, {"storage": JPEG, **SMALL, "rates": FINE}, None),
        (decode_jpeg, {"storage": JPEG, **SMALL, "rates": {"read": 400.0}}, None),
        (decode_jpeg, {"storage": JPEG, **SMALL, "machine": {"memory_bytes": GB}}, None),
        (decode_png, {"storage": PNG, **SMALL}, RAW_OF_224),
        (
            decode_png,
            {"storage": PNG, **SMALL, "machine": {"memory_bytes": GB}},
            JPEG_OF_256,
        ),
        (decode_png, {"storage": {**PNG, "free_bytes": 1e9}, **SMALL}, JPEG_OF_256),
        (decode_webp, {"storage": WEBP, **SMALL}, RAW_OF_224),
        (decode_other, {"storage": {"codec": "bmp"}, **SMALL}, RAW_OF_224),
        (decode_other, {"storage": JPEG, **SMALL}, None),
        (
            decode_jpeg,
            {"storage": {**JPEG, "even": True, "image_size": (32, 32)}},
            {"encode": "raw"},
        ),
        (decode_jpeg, {"storage": {**JPEG, "even": False, "image_size": (32, 32)}}, None),
        (small_records, {"storage": TINY_FILES, "rates": {"read": 500.0}}, {"encode": "raw"}),
        (small_records, {"storage": TINY_FILES}, None),
        (small_records, {"rates": {"read": 500.0}}, None),
        (
            small_records,
            {"storage": {**TINY_FILES, "even": False}, "rates": {"read": 500.0}},
            {"encode": "keep"},
        ),
        (pack_folder, {"storage": TINY_FILES, "rates": {"read": 500.0}}, None),
        (pack_folder, {}, {"encode": "keep"}),
        (pack_folder, {"storage": {"form": "hdf5"}}, None),
        (pack_folder, {"rates": FINE}, None),
        (pack_folder, {"rates": {"read": 1e5}}, None),
        (repack_contiguous, {"storage": CHUNKED}, {}),
        (repack_contiguous, {"storage": CHUNKED, "settings": {"shuffle": False}}, None),
        (repack_contiguous, {"storage": CHUNKED, "settings": {"block": 256}}, None),
        (repack_contiguous, {"storage": {**CHUNKED, "chunk_records": 1}}, None),
        (repack_contiguous, {"storage": {**CHUNKED, "chunk_records": None}}, None),
    ],
)
def test_a_store_is_to_be_packed_so_or_not_at_all(rule, changes, wanted):
    verdict = rule(facts(**changes))
    assert (None if verdict is None else verdict.repack.options) == wanted
    assert verdict is None or (
        verdict.rule == rule.__name__ and verdict.gain >= 1 and verdict.says and verdict.why
    )


@pytest.mark.parametrize(
    ("rule", "changes", "wanted"),
    [
        (
            order_block,
            {"storage": CHUNKED},
            ("order=block", "order.block_records=256", "order.window_blocks=4"),
        ),
        (
            order_block,
            {"storage": {"disk": "rotating", "num_records": 10**6}},
            ("order=block", "order.block_records=1024", "order.window_blocks=4"),
        ),
        (order_block, {"storage": {"disk": "solid state", "num_records": 10**6}}, None),
        (order_block, {"storage": CHUNKED, "settings": {"block": 256}}, None),
    ],
)
def test_a_place_or_an_order_is_advised_if_it_helps(rule, changes, wanted):
    verdict = rule(facts(**changes))
    assert (None if verdict is None else verdict.overrides) == wanted


def test_crops_of_large_even_images_are_packed_as_pixels_of_the_size_that_they_need():
    crop = {"transform": "random_resized_crop", "size": (224, 224)}
    large = {"image_size": (1344, 1792), "even": True, "num_records": 1000}
    verdict = repack_smaller(facts(storage=large, settings=crop))
    assert verdict.repack.options == {"encode": "raw", "resize": 448, "layout": "hwc"}
    assert verdict.disk_bytes == 1000 * 3 * 448 * 597
    assert verdict.learns
    no_room = repack_smaller(facts(storage={**large, "free_bytes": 1e8}, settings=crop))
    assert no_room.repack.options == {"encode": "jpeg", "resize": 448}
    assert no_room.disk_bytes < 0.2 * verdict.disk_bytes


def test_a_folder_is_packed_from_files_and_a_store_from_a_store():
    assert pack_folder(facts()).repack.source == "folder"
    assert pack_folder(facts(storage={"follow_links": "/data"})).repack.follow_links == "/data"
    assert repack_contiguous(facts(storage=CHUNKED)).repack.source == "store"


ITEMS = {"form": "dataset", "encoding": "raw", "image_size": None, "pack_words": "paceline pack x"}


@pytest.mark.parametrize(
    ("changes", "learns"),
    [
        ({"storage": ITEMS}, False),
        ({"storage": {**ITEMS, "draws": True}}, True),
        ({"storage": {**ITEMS, "pack_words": ""}}, None),
        ({"storage": ITEMS, "rates": FINE}, None),
        ({"storage": ITEMS, "machine": {"memory_bytes": 10**8}}, None),
    ],
)
def test_a_dataset_is_to_be_packed_if_its_items_fit(changes, learns):
    verdict = pack_dataset(facts(**changes))
    assert (None if verdict is None else verdict.learns) == learns
    if verdict is not None:
        assert verdict.gain > 1.5
        assert "paceline pack x" in verdict.edit
        assert ("augment=" in verdict.why) == learns
