"""Label maps, by every store, writer, source, transform and augment."""

from importlib.util import find_spec

import numpy as np
import pytest
import torch

from framework.augment.color_jitter import ColorJitter
from framework.augment.compose import Compose
from framework.augment.crop_flip import CropFlip
from framework.augment.cutmix import CutMix
from framework.augment.flip import Flip
from framework.augment.kornia import Kornia
from framework.augment.mixup import Mixup
from framework.augment.none import NoAugment
from framework.augment.normalize import Normalize
from framework.augment.random_erasing import RandomErasing
from framework.contracts.data import KnowsLabels
from framework.contracts.records import IGNORE, Manifest
from framework.errors import ConfigError, DataError
from framework.order.draws import draws
from framework.store.folder_store import FolderWriter
from framework.store.hdf5_store import HDF5Store, HDF5Writer
from framework.store.lmdb_store import LMDBStore, LMDBWriter
from framework.transform.albumentations import Albumentations
from framework.transform.center_crop import CenterCrop
from framework.transform.compose import ComposeTransform
from framework.transform.flip import FlipTransform
from framework.transform.function import FunctionTransform
from framework.transform.none import NoTransform
from framework.transform.opencv import OpenCVTransform
from framework.transform.random_crop import RandomCrop
from framework.transform.random_resized_crop import RandomResizedCrop
from framework.transform.resize import Resize
from framework.transform.rotate import Rotate
from tests.contract.cases import (
    MAP_FIELDS,
    RAW_MAP_FIELDS,
    WAYS,
    make_source,
    make_store,
    map_records,
    micros,
)

STORES = ("hdf5_maps", "lmdb_maps", "hdf5_raw_maps", "lmdb_raw_maps", "shards_maps")
SOURCES = ("hdf5_maps", "lmdb_maps", "hdf5_raw_maps", "lmdb_raw_maps", "dali_maps", "dali_raw_maps")


def _same(images, rng):
    return images


SCALING = [
    Resize([24, 24], True, True),
    Resize([7, 5], False, True),
    Resize([7, 5], False, False),
    CenterCrop([8, 6], 10, True),
    RandomResizedCrop([20, 20], [0.3, 1.0], [3 / 4, 4 / 3], 0.5, 0.5, True),
    ComposeTransform({"turn": Rotate([1, 3]), "size": Resize([20, 20], True, True)}),
]
PLACING = [
    NoTransform(),
    FlipTransform(0.5, 0.5),
    RandomCrop([6, 5], 0.5, 0.5),
    FunctionTransform(_same, RandomCrop([6, 5], 0.5, 0.5), False),
    OpenCVTransform(3, 0.5),
    ComposeTransform({"turn": Rotate([0, 1, 2, 3]), "crop": RandomCrop([6, 6], 0.5, 0.5)}),
]
if find_spec("albumentations"):
    STEPS = [
        {"name": "HorizontalFlip", "params": {"p": 0.5}},
        {"name": "Affine", "params": {"p": 1.0, "translate_px": 3}},
    ]
    PLACING.append(Albumentations(STEPS, NoTransform(), [], False))
    SCALING.append(
        Albumentations(
            [{"name": "Rotate", "params": {"p": 1.0}}], Resize([20, 20], True, True), [], False
        )
    )
named = {"ids": lambda part: type(part).__name__}


@pytest.fixture
def make():
    """Yield a function that makes sources, which are closed at the end."""
    made = []

    def source(kind, **options):
        made.append(make_source(kind, 6, batch_size=6, **options))
        return made[-1]

    yield source
    for item in made:
        item.close()


@pytest.mark.parametrize("kind", STORES)
def test_a_store_keeps_the_kinds_of_its_fields(kind):
    store, _ = make_store(kind)
    assert {name: field.kind for name, field in store.manifest.fields.items()} == {
        "image": "image",
        "label": "raw",
        "mask": "labels",
    }
    assert store.manifest.label_maps == ("mask",)
    store.close()


@pytest.mark.parametrize("fields", [MAP_FIELDS, RAW_MAP_FIELDS], ids=["encoded", "raw"])
@pytest.mark.parametrize(
    ("writer_class", "store_class"), [(HDF5Writer, HDF5Store), (LMDBWriter, LMDBStore)]
)
def test_a_writer_keeps_the_kinds_of_its_fields(writer_class, store_class, fields):
    writer = writer_class("x", fields=fields, num_records=3)
    writer.write(map_records(3, encoded=fields is MAP_FIELDS), ["a", "b", "c"])
    writer.close(Manifest(3, fields, ["a", "b", "c"]))
    store = store_class("x")
    assert store.manifest.fields == fields
    store.close()


def test_a_folder_of_images_which_cannot_say_so_is_refused():
    fields = {"image": MAP_FIELDS["mask"], "label": MAP_FIELDS["label"]}
    with pytest.raises(DataError, match=r"D114.*label maps"):
        FolderWriter("x", fields=fields, num_records=3)


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("transform", SCALING, **named)
def test_scaling_invents_no_class_and_stays_with_the_image(make, kind, transform):
    if kind.startswith("dali") and transform.function is not None:
        pytest.skip("DALI takes no transform with a function")
    batch = next(make(kind, transform=transform).batches(0)).batch
    image, mask = batch["image"], batch["mask"]
    assert mask.dtype == torch.uint8
    assert mask.shape == (6, 1, *image.shape[2:])
    assert set(mask.unique().tolist()) <= {0, 7, IGNORE}
    assert 7 in mask
    seen = mask != IGNORE
    assert ((image[:, :1] > 105) == (mask == 7))[seen].float().mean() > 0.93


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("transform", PLACING, **named)
def test_a_map_is_placed_as_its_image(make, kind, transform):
    if kind.startswith("dali") and transform.function is not None:
        pytest.skip("DALI takes no transform with a function")
    for epoch in range(3):
        batch = next(make(kind, transform=transform).batches(epoch)).batch
        mask, seen = batch["mask"], batch["mask"] != IGNORE
        assert torch.equal(batch["image"][:, :1][seen], (30 * mask)[seen])
        assert not batch["image"][:, :2][(~seen).expand(-1, 2, -1, -1)].any()


@pytest.mark.parametrize("transform", [SCALING[4], PLACING[2]], **named)
def test_maps_are_the_same_whoever_reads_them(make, transform):
    result = {
        kind: next(make(kind, transform=transform).batches(1)).batch["mask"] for kind in SOURCES
    }
    assert all(torch.equal(mask, result["hdf5_maps"]) for mask in result.values())


@pytest.mark.parametrize("transform", [SCALING[4], PLACING[4]], **named)
def test_workers_do_not_change_a_map(make, transform):
    ways = [
        micros(make("hdf5_maps", transform=transform, num_workers=num, worker_kind=how))
        for num, how in WAYS
    ]
    assert ways == ways[:1] * len(WAYS)


# ---- augments

MOVING = [
    CropFlip("image", 3, 0.5, None, None),
    CropFlip(["image", "mask"], 3, 0.5, None, None),
    Flip("image", 0.5, 0.5),
    CutMix("image", "mask", None, 1.0, 1.0),
    CutMix("image", "label", 3, 1.0, 1.0),
    Compose({"flip": Flip("image", 0.5, 0.5), "crop": CropFlip("image", 2, 0.5, None, None)}),
]
COLORING = [
    NoAugment(),
    Normalize("image", [0.5], [0.5]),
    ColorJitter("image", 0.4, 0.4, 0.4, 0.1),
    RandomErasing("image", 1.0, [0.1, 0.3], [0.5, 2.0], [0.0]),
    Compose(
        {
            "jitter": ColorJitter("image", 0.4, 0.4, 0.4, 0.1),
            "normalize": Normalize("image", [0.5], [0.5]),
        }
    ),
]
if find_spec("kornia"):
    MOVING.append(
        Kornia("image", [{"name": "RandomAffine", "params": {"degrees": 30.0, "p": 1.0}}], False)
    )
    COLORING.append(Kornia("image", [{"name": "RandomBrightness", "params": {"p": 1.0}}], False))


def _batch():
    records = map_records(6, encoded=False)
    return {
        "index": torch.arange(6),
        **{name: torch.from_numpy(np.array(values)) for name, values in records.items()},
    }


def _draws(augment):
    return draws(torch.arange(6), 0, 0, augment.num_draws)


@pytest.mark.parametrize("augment", MOVING, **named)
def test_an_augment_moves_a_map_as_its_image(augment):
    known, batch = augment.with_labels(["mask"]), _batch()
    result = known(batch, _draws(known))
    image, mask, seen = result["image"], result["mask"], result["mask"] != IGNORE
    white = 1 if image.dtype == torch.uint8 else 255
    assert mask.dtype == torch.uint8
    assert set(mask.unique().tolist()) <= {0, 7, IGNORE}
    assert not torch.equal(mask, batch["mask"])
    assert ((image[:, :1] * white > 105) == (mask == 7))[seen].float().mean() > (
        0.999 if white == 1 else 0.93
    )
    assert torch.equal(known(batch, None)["mask"], batch["mask"])
    assert torch.equal(batch["mask"], _batch()["mask"])


@pytest.mark.parametrize("augment", COLORING, **named)
def test_an_augment_of_colors_leaves_a_map_alone(augment):
    known = augment.with_labels(["mask"])
    for numbers in (None, _draws(known)):
        assert torch.equal(known(_batch(), numbers)["mask"], _batch()["mask"])


@pytest.mark.parametrize("augment", [*MOVING, *COLORING], **named)
def test_an_augment_draws_the_same_with_and_without_a_map(augment):
    known = augment.with_labels(["mask"])
    assert isinstance(augment, KnowsLabels)
    assert known.num_draws == augment.num_draws
    assert getattr(known, "exact", False) == getattr(augment, "exact", False)
    if isinstance(augment, CutMix) or (isinstance(augment, CropFlip) and "mask" in augment.fields):
        return  # without the kind, the map is another target, or a picture
    assert torch.equal(
        known(_batch(), _draws(known))["image"], augment(_batch(), _draws(augment))["image"]
    )


@pytest.mark.parametrize(
    "augment",
    [
        Normalize(["image", "mask"], [0.5], [0.5]),
        ColorJitter(["image", "mask"], 0.4, 0.4, 0.0, 0.0),
        RandomErasing("mask", 1.0, [0.1, 0.3], [0.5, 2.0], [0.0]),
        Compose({"flip": Flip("image", 0.5, 0.5), "normalize": Normalize("mask", [0.5], [0.5])}),
        Mixup("image", "label", 3, 0.3, 0.8),
    ],
    **named,
)
def test_what_cannot_be_done_to_a_map_is_refused(augment):
    with pytest.raises(ConfigError, match=r"C193.*mask.*label map|C193.*label map mask"):
        augment.with_labels(["mask"])


@pytest.mark.skipif(not find_spec("albumentations"), reason="Albumentations is not installed")
def test_a_pipeline_that_would_blend_a_map_is_refused():
    steps = [{"name": "Rotate", "params": {"p": 1.0, "mask_interpolation": 1}}]
    function = Albumentations(steps, NoTransform(), [], False).function
    assert isinstance(function, KnowsLabels)
    with pytest.raises(ConfigError, match=r"C193.*mask_interpolation = 1: would blend mask"):
        function.with_labels(["mask"])
