"""Augmentations compiled for the CPU from the graph of which the compiler makes a GPU's kernels."""

import inspect
from functools import partial

import pytest
import torch
from torch._inductor import config, metrics

from framework.augment import color_jitter, cutmix, flip, mixup, none, normalize, random_erasing
from framework.augment.color_jitter import ColorJitter
from framework.augment.compose import Compose, Fused
from framework.augment.crop_flip import CropFlip
from framework.augment.normalize import Normalize
from framework.contracts.data import traits_of
from framework.order.draws import DeviceDraws

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*torch.jit.*:DeprecationWarning"
)  # the compiler's own
ALL = Compose(
    {
        "crop": CropFlip("image", 3, 0.5, None, None),
        "flip": flip.Flip("image", 0.5, 0.5),
        "jitter": ColorJitter("image", 0.4, 0.4, 0.4, 0.1),
        "normalize": Normalize("image", [0.5, 0.4, 0.3], [0.2, 0.2, 0.3]),
        "erase": random_erasing.RandomErasing("image", 0.5, [0.02, 0.33], [0.3, 3.3], [0.0]),
        "mix": mixup.Mixup("image", "label", 3, 0.3, 0.8),
        "cut": cutmix.CutMix("image", "label", 3, 1.0, 0.8),
    }
)
REFLECTED = CropFlip("image", 3, 0.5, [0.5], [0.2], "reflect", alternate=True)
each = pytest.mark.parametrize(
    ("augment", "most_kernels", "sizes"),
    [
        pytest.param(none.NoAugment(), 0, (6,), id="none"),
        pytest.param(Normalize("image", [0.5], [0.5]), 1, (6, 4), id="two sizes"),
        pytest.param(REFLECTED, 6, (6,), id="alternating, reflected"),
        pytest.param(ALL, 25, (6,), id="all"),
    ],
)
KEYS = DeviceDraws(0, 0).keys(0)
GRAPH = partial(torch.compile, fullgraph=True, dynamic=False, backend="eager")  # made in no time


@pytest.fixture(autouse=True)
def operators(monkeypatch):
    """Leave out the functions in C, as on a GPU: the compiler cannot look into them."""
    for module in (color_jitter, normalize):
        monkeypatch.setattr(module, "find", lambda name: None)
    torch.compiler.reset()
    with config.patch(compile_threads=1):  # a pool of them would stay behind
        yield


def batch_of(count):
    generator = torch.Generator().manual_seed(count)
    image = torch.randint(0, 256, (count, 3, 9, 12), dtype=torch.uint8, generator=generator)
    return {"index": torch.arange(count), "image": image, "label": torch.arange(count) % 3}


def finish_of(augment):
    """Return the numbers of an augment, and a function that draws them and augments a batch."""
    numbers = DeviceDraws(0, augment.num_draws, traits_of(augment).alternating)

    def finish(batch, *keys):
        return augment(batch, numbers.of(batch["index"], *keys) if augment.num_draws else None)

    return numbers, finish


@pytest.mark.slow
@each
def test_few_kernels_give_the_same_numbers_in_every_epoch(augment, most_kernels, sizes):
    (numbers, finish), told = finish_of(augment), []
    fused = Fused(finish, told.append)
    metrics.reset()
    for count in sizes:
        for epoch in range(3):
            batch, keys = batch_of(count), numbers.keys(epoch)
            result, expected = fused(batch, *keys), finish(batch, *keys)
            assert all(torch.equal(result[name], expected[name]) for name in expected)
            assert torch.equal(batch["image"], batch_of(count)["image"])
    assert not told
    assert bool(metrics.generated_kernel_count) == bool(most_kernels)
    assert metrics.generated_kernel_count <= len(sizes) * most_kernels  # the same in each epoch


@pytest.mark.parametrize(
    "augment",
    [CropFlip("image", 2, 0.5, [0.5], [0.5]), ColorJitter("image", 0.4, 0.4, 0.4, 0.1)],
    ids=lambda augment: type(augment).__name__,
)
def test_the_compiler_need_not_look_for_functions_in_c(augment, monkeypatch):
    def find(name):
        torch._dynamo.graph_break()  # refused in a full graph

    for module in (color_jitter, normalize):
        monkeypatch.setattr(module, "find", find)
    Fused(augment, print)  # marks what is constant
    fused = torch.compile(augment, fullgraph=True, backend="eager")
    batch = {"image": torch.empty(4, 3, 8, 8, dtype=torch.uint8, device="meta")}
    fused(batch, torch.empty(4, augment.num_draws, device="meta"))


def one_off(batch, key):
    """Change the last bit of each value, but only if compiled, in batches of three."""
    image = batch["image"].to(torch.float32)
    if torch.compiler.is_compiling() and len(image) == 3:
        image = torch.nextafter(image, image + 1)
    return {"image": image, "label": batch["label"]}


@pytest.mark.slow
def test_other_numbers_for_one_size_are_reported_once_and_not_used():
    told = []
    fused = Fused(one_off, told.append)
    for count in (2, 3, 3, 2, 3):
        batch = batch_of(count)
        assert torch.equal(fused(batch, *KEYS)["image"], batch["image"].float())
        assert len(told) == (count == 3 or bool(told))
    [note] = told
    assert note.startswith(
        "note: compile=true: compiling the augmentation gives other numbers in image; it runs"
    )


def rows(batch, key):
    """Return a view, for which nothing has to be compiled."""
    return {"image": batch["image"].flatten(1)}


@pytest.mark.skipif(
    "isolate_recompiles" not in inspect.signature(torch.compile).parameters,
    reason="torch before 2.13 counts the sizes of all runs of a process",
)
def test_each_run_of_a_process_has_its_own_sizes():
    told = []
    with torch._dynamo.config.patch(recompile_limit=1):
        for number in range(2):
            Fused(rows, told.append)(batch_of(2 + number), *KEYS)
    assert not told


def plus_one(batch, key):
    return {"image": batch["image"] + 1}


def unlike_a_graph(batch, key):
    """Read a number from the device, which a graph cannot do."""
    return {"image": batch["image"] + int(batch["image"].sum().item() > 0)}


def test_an_augmentation_that_cannot_be_compiled_runs_as_it_is_and_is_reported_once():
    told = []
    fused = Fused(unlike_a_graph, told.append)
    for _ in range(2):
        assert torch.equal(fused(batch_of(2), *KEYS)["image"], batch_of(2)["image"] + 1)
    [note] = told
    assert note.startswith("note: compile=true: compiling the augmentation is not possible (")
    assert "\n" not in note


def test_an_augmentation_that_fails_later_runs_as_it_is_and_is_reported_once(monkeypatch):
    told = []
    fused = Fused(plus_one, told.append)
    monkeypatch.setattr(fused, "_fused", GRAPH(plus_one))
    for number in range(3):
        if number == 1:  # the compiler has to look again, and cannot
            monkeypatch.setattr(fused, "_fused", GRAPH(unlike_a_graph))
        assert fused({"image": torch.ones(2)}, *KEYS)["image"].tolist() == [2.0, 2.0]
    assert len(told) == 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@each
def test_kernels_of_a_gpu_give_the_numbers_of_the_cpu(augment, most_kernels, sizes):
    (numbers, finish), told, batch = finish_of(augment), [], batch_of(6)
    fused = Fused(finish, told.append)
    there = {name: tensor.cuda() for name, tensor in batch.items()}
    for epoch in range(3):
        keys = numbers.keys(epoch)
        expected = finish(batch, *keys)
        result = fused(there, *keys)
        assert all(torch.equal(value.cpu(), expected[name]) for name, value in result.items())
    assert not told
