"""Where a model has looked in the images."""

import numpy as np
import torch

from framework.config.image_places import ImagePlace, image_places, in_images
from framework.contracts.data import SourceContext
from framework.contracts.prediction import PredictedBoxes, PredictedMaps, ScoredBoxes
from framework.contracts.records import Chunk, Field, Manifest
from framework.data.reader import BatchReader
from framework.image.decode import encode_png
from framework.order.batches import Order
from framework.store.chunk_store import ChunkStore
from framework.transform.resize import Resize

SIZES = [(20, 40), (30, 10)]


def reader():
    files = [encode_png(np.zeros((3, *size), np.uint8)) for size in SIZES]
    manifest = Manifest(2, {"image": Field("uint8", (3, None, None), "image")})
    store = ChunkStore(Chunk({"image": files}, ["a", "b"]), manifest, str)
    transform = Resize([8, 8], crop=True, antialias=True)
    order = lambda count: Order(count, batch_size=2)  # noqa: E731
    return BatchReader(store, SourceContext(order, transform, training=False)), files


def test_a_place_is_the_window_of_the_transform():
    read, files = reader()
    places = image_places(read, "image", files, torch.arange(2))
    assert places == [
        ImagePlace((20, 40), [0, 10, 20, 20], (8, 8)),
        ImagePlace((30, 10), [10, 0, 10, 10], (8, 8)),
    ]


def test_maps_and_boxes_are_those_of_the_given_images():
    read, files = reader()
    places = image_places(read, "image", files, torch.arange(2))
    maps = in_images(PredictedMaps(torch.ones(2, 8, 8, dtype=torch.uint8)), places)
    assert [numbers.shape for numbers in maps] == SIZES
    scored = ScoredBoxes(torch.tensor([[0.0, 0, 8, 8]]), torch.ones(1), torch.zeros(1))
    boxes = in_images(PredictedBoxes([scored, scored]), places)
    assert boxes[0].boxes.tolist() == [[10, 0, 30, 20]]


def test_without_places_they_stay_in_what_the_model_saw():
    maps = in_images(PredictedMaps(torch.ones(1, 8, 8)), None)
    assert maps[0].shape == (8, 8)
