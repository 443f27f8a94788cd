import pytest

from tests.diagnosis.cases import CUDA, FINE, GB, LIMITED, SLOW_RECORDS, SLOWED, facts, verdict_of

PROCESSES = {"workers": 16, "kind": "process"}
LOCKED = {"prepare_two": 310.0}
FULL = {"own_cores": 3.8}
MANY_ON_DISK = {"num_records": 10**6}


@pytest.mark.parametrize(
    ("rule", "changes", "wanted"),
    [
        ("raise_workers", {}, ("workers.num=4",)),
        ("raise_workers", {"workers": 0, "loader": "plain"}, ("workers.num=4",)),
        ("raise_workers", {"workers": 4}, None),
        ("raise_workers", {**FINE}, None),
        ("raise_workers", {"prepare": 64000.0}, None),
        ("raise_workers", {**LOCKED}, None),
        ("lower_workers", {"workers": 16}, ("workers.num=4",)),
        ("lower_workers", PROCESSES, ("workers.num=4", "workers.kind=thread")),
        ("lower_workers", {**PROCESSES, **LOCKED}, ("workers.num=4",)),
        ("no_workers", {"prepare": 9000.0}, ("workers.num=0",)),
        ("no_workers", {"prepare": 9e3, "loader": "plain"}, ("workers.num=0", "loader=prefetch")),
        ("no_workers", {"prepare": 9e3, "kind": "process"}, ("workers.num=0", "workers.kind=null")),
        ("no_workers", {}, None),
        ("processes", {**LOCKED}, ("workers.kind=process", "workers.num=4")),
        (
            "processes",
            {"has_function": True, "python": {"transform": 0.9}},
            ("workers.kind=process", "workers.num=4"),
        ),
        ("processes", {"has_function": True, "python": {"transform": 0.25}}, None),
        ("processes", {}, None),
        ("processes", {**LOCKED, "kind": "process"}, None),
        ("processes", {**SLOWED}, None),
        ("slowed_step", {**SLOWED}, ("workers.kind=process", "workers.num=3")),
        ("slowed_step", {**SLOWED, "workers": 16}, None),
        ("slowed_step", {**SLOWED, "loader_rate": 500.0}, None),
        ("slowed_step", {**SLOWED, "wait": 0.6}, None),
        ("slowed_step", {**SLOWED, "spans_s": SLOWED["compute_spans_s"]}, None),
        ("slowed_step", {**SLOWED, **FULL}, None),
        ("slowed_step", {**SLOWED, **FULL, **CUDA, "workers": 4}, ("workers.num=2",)),
        ("threads", {"kind": "process"}, ("workers.kind=thread",)),
        ("threads", {"kind": "process", "has_function": True}, None),
        ("threads", {"kind": "process", **LOCKED}, None),
        ("threads", {"kind": "process", "workers": 16}, None),
        ("prefetch", {"loader": "plain"}, ("loader=prefetch",)),
        ("prefetch", {"loader": "plain", **CUDA}, ("loader=stream",)),
        ("prefetch", {"loader": "plain", "workers": 0}, None),
        ("prefetch", {"loader": "plain", "workers": 0, "prepare": 64000.0}, ("loader=prefetch",)),
        ("prefetch", {}, None),
        ("stream", {**CUDA, "copy": 2000.0}, ("loader=stream",)),
        ("stream", {**CUDA, "copy": 2000000.0}, None),
        ("stream", {**CUDA, "copy": 2000.0, "loader": "stream"}, None),
        (
            "augment_on_device",
            {**CUDA, "transform": "flip"},
            ("transform=none", "augment=crop_flip", "augment.padding=0"),
        ),
        (
            "order_block",
            {**MANY_ON_DISK, "disk": "rotating"},
            ("order=block", "order.block_records=1024", "order.window_blocks=4"),
        ),
        ("order_block", {**MANY_ON_DISK, "disk": "solid state"}, None),
        ("order_block", {**MANY_ON_DISK, "disk": "rotating", "block": 256}, None),
        ("augment_on_device", {"transform": "flip"}, None),
        ("augment_on_device", {**CUDA, "transform": "flip", "augment": "mixup"}, None),
    ],
)
def test_a_rule_speaks_if_and_only_if_it_should(rule, changes, wanted):
    verdict = verdict_of(rule, changes)
    assert (None if verdict is None else verdict.overrides) == wanted


def test_a_function_on_the_host_is_advised_to_move_to_the_gpu_in_words():
    changes = {"has_function": True, "python": {"transform": 0.9}}
    verdict = verdict_of("augment_on_device", {**CUDA, **changes})
    assert verdict.overrides == ()
    assert "augment" in verdict.edit
    assert "90 %" in verdict.says


def test_a_slowed_step_says_by_how_much_and_what_else_helps():
    verdict = verdict_of("slowed_step", {**SLOWED, **CUDA})
    assert verdict.says.startswith("Reading slows the step by 100 %: ")
    assert "64.0 ms on a batch that stays on the device, and 128.0 ms" in verdict.says
    assert "fewer threads" in verdict.why
    assert "pack.encode=raw" in verdict.why
    assert "data=dali" in verdict.why
    assert verdict.gain == pytest.approx(1 / (1 - 0.02 - 480 / 1200))  # what reading takes


HUGE = {"image_size": (3000, 4000)}
JPEG = {"codec": "jpeg"}
PNG = {"codec": "png"}
WEBP = {"codec": "webp"}
TINY_FILES = {"record_bytes": 2e3, "even": True, "image_size": (32, 32)}
SMALL = {"transform": "resize", "size": (224, 224)}
JPEG_OF_256 = {"encode": "jpeg", "resize": 256}
RAW_OF_224 = {"encode": "raw", "size": [224, 224], "layout": "hwc"}


@pytest.mark.parametrize(
    ("rule", "changes", "wanted"),
    [
        ("repack_smaller", {**HUGE, **SMALL}, RAW_OF_224),
        ("repack_smaller", {**HUGE, **SMALL, "free_memory_bytes": GB}, JPEG_OF_256),
        (
            "repack_smaller",
            {**HUGE, "transform": "random_resized_crop", "size": (224, 224)},
            {"encode": "jpeg", "resize": 448},
        ),
        ("repack_smaller", {"image_size": (300, 400), **SMALL}, None),
        ("repack_smaller", {**HUGE, "form": "other", **SMALL}, None),
        ("repack_smaller", {**HUGE, **SMALL, **FINE}, None),
        ("repack_smaller", {**HUGE, "record_bytes": 3000000.0, **SMALL}, None),
        ("repack_smaller", {**HUGE, "encoding": "raw", **SMALL}, None),
        ("huge_records", {**HUGE, "record_bytes": 3000000.0, **SMALL}, RAW_OF_224),
        ("huge_records", {**HUGE, **SMALL}, None),
        ("raw_too_large", {**HUGE, "encoding": "raw", **SMALL}, RAW_OF_224),
        ("decode_jpeg", {**JPEG, **SMALL}, RAW_OF_224),
        ("decode_jpeg", {**PNG, **SMALL}, None),
        ("decode_jpeg", {**JPEG, **SMALL, "read": 400.0}, None),
        ("decode_jpeg", {**JPEG, **SMALL, "free_memory_bytes": GB}, None),
        ("decode_png", {**PNG, **SMALL}, RAW_OF_224),
        ("decode_png", {**PNG, **SMALL, "free_memory_bytes": GB}, JPEG_OF_256),
        ("decode_png", {**PNG, "free_bytes": 1000000000.0, **SMALL}, JPEG_OF_256),
        ("decode_webp", {**WEBP, **SMALL}, RAW_OF_224),
        ("decode_other", {"codec": "bmp", **SMALL}, RAW_OF_224),
        ("decode_other", {**JPEG, **SMALL}, None),
        ("decode_jpeg", {**JPEG, "even": True, "image_size": (32, 32)}, {"encode": "raw"}),
        ("decode_jpeg", {**JPEG, "even": False, "image_size": (32, 32)}, None),
        ("small_records", {**TINY_FILES, "read": 500.0}, {"encode": "raw"}),
        ("small_records", {**TINY_FILES}, None),
        ("small_records", {**TINY_FILES, "even": False, "read": 500.0}, {"encode": "keep"}),
        ("pack_folder", {**TINY_FILES, "read": 500.0}, None),
        ("pack_folder", {}, {"encode": "keep"}),
        ("pack_folder", {"form": "hdf5"}, None),
        ("pack_folder", {**FINE}, None),
        ("pack_folder", {"read": 100000.0}, None),
    ],
)
def test_a_store_is_packed_with_these_options_or_not_at_all(rule, changes, wanted):
    verdict = verdict_of(rule, changes)
    assert (None if verdict is None else verdict.repack.options) == wanted


def test_crops_of_large_even_images_are_packed_as_pixels_of_the_size_that_they_need():
    crop = {"transform": "random_resized_crop", "size": (224, 224)}
    large = {"image_size": (1344, 1792), "even": True, "num_records": 1000}
    verdict = verdict_of("repack_smaller", facts(**large, **crop))
    assert verdict.repack.options == {"encode": "raw", "resize": 448, "layout": "hwc"}
    assert verdict.disk_bytes == 1000 * 3 * 448 * 597
    assert verdict.learns
    no_room = verdict_of("repack_smaller", facts(**large, free_bytes=100000000.0, **crop))
    assert no_room.repack.options == {"encode": "jpeg", "resize": 448}
    assert no_room.disk_bytes < 0.2 * verdict.disk_bytes


ITEMS = {"form": "dataset", "encoding": "raw", "image_size": None, "pack_words": "paceline pack x"}


@pytest.mark.parametrize(
    ("changes", "learns"),
    [
        ({**ITEMS}, False),
        ({**ITEMS, "draws": True}, True),
        ({**ITEMS, "pack_words": ""}, None),
        ({**ITEMS, **FINE}, None),
        ({**ITEMS, "free_memory_bytes": 10**8}, None),
    ],
)
def test_a_dataset_is_to_be_packed_if_its_items_fit(changes, learns):
    verdict = verdict_of("pack_dataset", facts(**changes))
    assert (None if verdict is None else verdict.learns) == learns
    if verdict is not None:
        assert verdict.gain > 1.5
        assert "paceline pack x" in verdict.edit
        assert ("augment=" in verdict.why) == learns


def test_slow_records_are_named_with_what_they_cost():
    slow = facts(slow_records=SLOW_RECORDS, **LIMITED)
    verdict = verdict_of("slow_records", slow)
    assert slow.headroom == pytest.approx(4)
    assert verdict.gain == pytest.approx(1 / (1 - 0.75 / 2))
    assert "2 of 1,000 reads" in verdict.says
    assert "75 % of the waiting was for their batches: a/huge.jpg (500 ms, 9.0 MB)" in verdict.says


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"slow_records": {**SLOW_RECORDS, "num_slow": 100}},
        {"slow_records": {**SLOW_RECORDS, "saved_s": 0.01}},
        {"slow_records": SLOW_RECORDS, **FINE},
    ],
    ids=["none is slow", "many are slow", "they cost nothing", "data does not limit"],
)
def test_otherwise_they_are_no_cause(changes):
    assert verdict_of("slow_records", changes) is None


SIX = {"num_slow": 6, "numbers": [7, 9]}


@pytest.mark.parametrize(
    ("block", "others", "trial"),
    [
        (SIX, {}, 'select="record not in [7, 9]"'),
        (SIX, {"select": "a == 1"}, 'select="(a == 1) and record not in [7, 9]"'),
        ({"num_slow": 5, "numbers": [7, 9]}, {}, None),  # there may be more
        (SIX, {"form": "dataset"}, None),
    ],
)
def test_a_trial_leaves_the_slow_records_out(block, others, trial):
    changes = {"slow_records": {**SLOW_RECORDS, **block}, **LIMITED, **others}
    verdict = verdict_of("slow_records", changes)
    assert verdict.trial == ((trial,) if trial else ())
    assert not verdict.can_try
