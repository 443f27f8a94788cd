"""Label maps, by every store, writer, source, transform and augment."""

from importlib.util import find_spec

import numpy as np
import pytest
import torch

from framework.augment import color_jitter, compose, flip, kornia, mixup, none, random_erasing
from framework.augment.crop_flip import CropFlip
from framework.augment.cutmix import CutMix
from framework.augment.normalize import Normalize
from framework.contracts.data import KnowsLabels, traits_of
from framework.contracts.records import IGNORE
from framework.errors import ConfigError, DataError
from framework.order.draws import draws
from framework.store.folder_store import FolderWriter
from framework.transform import center_crop, opencv
from framework.transform.albumentations import Albumentations
from framework.transform.compose import ComposeTransform
from framework.transform.flip import FlipTransform
from framework.transform.function import FunctionTransform
from framework.transform.none import NoTransform
from framework.transform.random_crop import RandomCrop
from framework.transform.random_resized_crop import RandomResizedCrop
from framework.transform.resize import Resize
from framework.transform.rotate import Rotate
from tests.contract.cases import MAP_FIELDS, WAYS, make_source, make_store, map_records, micros

STORES = ("hdf5_maps", "lmdb_maps", "hdf5_raw_maps", "lmdb_raw_maps", "shards_maps")
SOURCES = ("hdf5_maps", "lmdb_maps", "hdf5_raw_maps", "lmdb_raw_maps", "dali_maps", "dali_raw_maps")


def same(images, rng):
    return images


CROP = RandomCrop([6, 5], 0.5, 0.5)
RESIZED = RandomResizedCrop([20, 20], [0.3, 1.0], [3 / 4, 4 / 3], 0.5, 0.5, True)
SCALING = [
    *(Resize([24, 24], True, True), Resize([7, 5], False, True), Resize([7, 5], False, False)),
    *(center_crop.CenterCrop([8, 6], 10, True), RESIZED),
    ComposeTransform({"turn": Rotate([1, 3]), "size": Resize([20, 20], True, True)}),
]
SHIFTED = opencv.OpenCVTransform(3, 0.5)
PLACING = [
    *(NoTransform(), FlipTransform(0.5, 0.5), CROP, FunctionTransform(same, CROP, False), SHIFTED),
    ComposeTransform({"turn": Rotate([0, 1, 2, 3]), "crop": RandomCrop([6, 6], 0.5, 0.5)}),
]
if find_spec("albumentations"):
    AFFINE = {"name": "Affine", "params": {"p": 1.0, "translate_px": 3}}
    STEPS = [{"name": "HorizontalFlip", "params": {"p": 0.5}}, AFFINE]
    PLACING.append(Albumentations(STEPS, NoTransform(), [], False))
    ROTATE = {"name": "Rotate", "params": {"p": 1.0}}
    SCALING.append(Albumentations([ROTATE], Resize([20, 20], True, True), [], False))
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


def pairs_of(make, transform, epoch=0):
    """Yield the images and the masks of a batch from each source that takes the transform."""
    for kind in SOURCES:
        if not (kind.startswith("dali") and transform.function is not None):
            batch = next(make(kind, transform=transform).batches(epoch)).batch
            yield batch["image"], batch["mask"]


def assert_mask_fits(image, mask, share):
    """Check that a mask has its classes alone, where its image is bright: in ``share`` of it."""
    seen = mask != IGNORE
    assert mask.dtype == torch.uint8
    assert set(mask.unique().tolist()) <= {0, 7, IGNORE}
    assert ((image[:, :1] > 105) == (mask == 7))[seen].float().mean() > share


@pytest.mark.parametrize("kind", STORES)
def test_a_store_keeps_the_kinds_of_its_fields(kind):
    store, _ = make_store(kind)
    kinds = {name: field.kind for name, field in store.manifest.fields.items()}
    assert kinds == {"image": "image", "label": "raw", "mask": "labels"}
    assert store.manifest.label_maps == ("mask",)
    store.close()


def test_a_folder_of_images_cannot_hold_label_maps():
    fields = {"image": MAP_FIELDS["mask"], "label": MAP_FIELDS["label"]}
    with pytest.raises(DataError, match=r"D114.*label maps"):
        FolderWriter("x", fields=fields, num_records=3)


@pytest.mark.parametrize("transform", SCALING, **named)
def test_scaling_invents_no_class_and_stays_with_the_image(make, transform):
    for image, mask in pairs_of(make, transform):
        assert mask.shape == (6, 1, *image.shape[2:])
        assert 7 in mask
        assert_mask_fits(image, mask, 0.93)


@pytest.mark.parametrize("transform", PLACING, **named)
def test_a_map_is_placed_as_its_image(make, transform):
    for epoch in range(2):
        for image, mask in pairs_of(make, transform, epoch):
            seen = mask != IGNORE
            assert torch.equal(image[:, :1][seen], (30 * mask)[seen])
            assert not image[:, :2][(~seen).expand(-1, 2, -1, -1)].any()


@pytest.mark.parametrize("transform", [RESIZED, CROP], **named)
def test_maps_are_the_same_whoever_reads_them(make, transform):
    masks = [mask for _, mask in pairs_of(make, transform, 1)]
    assert len(masks) == len(SOURCES)
    assert all(torch.equal(mask, masks[0]) for mask in masks)


@pytest.mark.parametrize("transform", [RESIZED, SHIFTED], **named)
def test_workers_do_not_change_a_map(make, transform):
    ways = [
        micros(make("hdf5_maps", transform=transform, num_workers=num, worker_kind=how))
        for num, how in WAYS
    ]
    assert ways == ways[:1] * len(WAYS)


FLIP = flip.Flip("image", 0.5, 0.5)
NORMALIZE = Normalize("image", [0.5], [0.5])
JITTER = color_jitter.ColorJitter("image", 0.4, 0.4, 0.4, 0.1)
BOTH = CropFlip(["image", "mask"], 3, 0.5, None, None)
MOVING = [
    *(CropFlip("image", 3, 0.5, None, None), BOTH, FLIP, CutMix("image", "mask", None, 1.0, 1.0)),
    CutMix("image", "label", 3, 1.0, 1.0),
    compose.Compose({"flip": FLIP, "crop": CropFlip("image", 2, 0.5, None, None)}),
]
COLORING = [
    *(none.NoAugment(), NORMALIZE, JITTER),
    random_erasing.RandomErasing("image", 1.0, [0.1, 0.3], [0.5, 2.0], [0.0]),
    compose.Compose({"jitter": JITTER, "normalize": NORMALIZE}),
]
if find_spec("kornia"):
    TURN = {"name": "RandomAffine", "params": {"degrees": 30.0, "p": 1.0}}
    MOVING.append(kornia.Kornia("image", [TURN], False))
    COLORING.append(
        kornia.Kornia("image", [{"name": "RandomBrightness", "params": {"p": 1.0}}], False)
    )


def batch_of():
    records = map_records(6, encoded=False).items()
    tensors = {name: torch.from_numpy(np.array(values)) for name, values in records}
    return {"index": torch.arange(6), **tensors}


def draws_of(augment):
    return draws(torch.arange(6), 0, 0, augment.num_draws)


@pytest.mark.parametrize("augment", MOVING, **named)
def test_an_augment_moves_a_map_as_its_image(augment):
    known, batch = augment.with_labels(["mask"]), batch_of()
    result = known(batch, draws_of(known))
    image, mask = result["image"], result["mask"]
    assert not torch.equal(mask, batch["mask"])
    if image.dtype == torch.uint8:
        assert_mask_fits(image, mask, 0.999)
    else:
        assert_mask_fits(image * 255, mask, 0.93)
    assert torch.equal(known(batch, None)["mask"], batch["mask"])
    assert torch.equal(batch["mask"], batch_of()["mask"])


@pytest.mark.parametrize("augment", COLORING, **named)
def test_an_augment_of_colors_leaves_a_map_alone(augment):
    known = augment.with_labels(["mask"])
    for numbers in (None, draws_of(known)):
        assert torch.equal(known(batch_of(), numbers)["mask"], batch_of()["mask"])


@pytest.mark.parametrize("augment", [*MOVING, *COLORING], **named)
def test_an_augment_draws_the_same_with_and_without_a_map(augment):
    known = augment.with_labels(["mask"])
    assert isinstance(augment, KnowsLabels)
    assert known.num_draws == augment.num_draws
    assert traits_of(known).exact == traits_of(augment).exact
    if not isinstance(augment, CutMix) and augment is not BOTH:
        # for these, without the kind, the map is another target, or a picture
        images = [each(batch_of(), draws_of(each))["image"] for each in (known, augment)]
        assert torch.equal(*images)


@pytest.mark.parametrize(
    "augment",
    [
        Normalize(["image", "mask"], [0.5], [0.5]),
        color_jitter.ColorJitter(["image", "mask"], 0.4, 0.4, 0.0, 0.0),
        random_erasing.RandomErasing("mask", 1.0, [0.1, 0.3], [0.5, 2.0], [0.0]),
        compose.Compose({"flip": FLIP, "normalize": Normalize("mask", [0.5], [0.5])}),
        mixup.Mixup("image", "label", 3, 0.3, 0.8),
    ],
    **named,
)
def test_a_change_of_colors_of_a_map_is_refused(augment):
    with pytest.raises(ConfigError, match=r"C193.*mask.*label map|C193.*label map mask"):
        augment.with_labels(["mask"])


@pytest.mark.skipif(not find_spec("albumentations"), reason="Albumentations is not installed")
def test_a_pipeline_that_would_blend_a_map_is_refused():
    steps = [{"name": "Rotate", "params": {"p": 1.0, "mask_interpolation": 1}}]
    function = Albumentations(steps, NoTransform(), [], False).function
    assert isinstance(function, KnowsLabels)
    with pytest.raises(ConfigError, match=r"C193.*mask_interpolation = 1: would blend mask"):
        function.with_labels(["mask"])
