import torch

from framework.data.synthetic import SyntheticSource
from tests.conftest import make_context
from tests.contract.cases import plain


def _source(num_records=20, **options):
    return SyntheticSource(
        "no/such/file", (3, 4, 5), 7, num_records, context=make_context(**options)
    )


def test_images_and_labels_have_the_asked_shape_and_range():
    batch = next(_source().batches(0)).batch
    assert batch["image"].shape == (4, 3, 4, 5)
    assert batch["image"].dtype == torch.uint8
    assert batch["label"].dtype == torch.int64
    assert set(batch["label"].tolist()) <= set(range(7))


def test_it_is_one_batch_for_ever():
    source = _source()
    batches = [plain(micro.batch) for epoch in range(2) for micro in source.batches(epoch)]
    assert all(batch == batches[0] for batch in batches)


def test_memory_holds_one_batch_whatever_the_number_of_records():
    source = _source(num_records=10**5)
    assert (
        source.sample(4)["image"].data_ptr()
        == next(source.batches(0, start=10**4)).batch["image"].data_ptr()
    )


def test_pixels_use_the_whole_range():
    image = _source(200, batch_size=200).sample(200)["image"]
    assert (int(image.min()), int(image.max())) == (0, 255)
    assert len(set(_source(200, batch_size=200).sample(200)["label"].tolist())) == 7


def test_the_seed_decides_the_pixels():
    def image(seed):
        context = make_context()
        return SyntheticSource(
            "x", (1, 8, 8), 2, 4, context=type(context)(context.order, context.transform, seed=seed)
        ).sample(4)

    assert plain(image(1)) == plain(image(1))
    assert plain(image(1)) != plain(image(2))


def test_the_short_last_batch_is_short():
    assert [len(micro.batch["label"]) for micro in _source(10).batches(0)] == [4, 4, 2]


def test_its_manifest_names_the_split_and_the_classes():
    manifest = _source().manifest
    assert manifest.source == "synthetic no/such/file"
    assert manifest.num_records == 20
    assert list(manifest.classes) == list("0123456")
