"""Items of a user's own Dataset: read, put together, and the same whoever reads them."""

import os
import pickle
import random
import resource
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from framework.contracts.records import Field, Ragged, notes_of
from framework.data import dataset as module
from framework.data.fields import collated, with_nested
from framework.data.reader import Request
from framework.errors import ConfigError, DataError, PacelineError
from framework.system.rng import generator_state
from framework.transform.resize import Resize
from tests.conftest import make_context
from tests.contract.cases import DrawingDataset
from tests.data.own_items import Broken, Clips, Endless, Once, fields

CPU = torch.device("cpu")


def in_thread(call):
    """Run a call in another thread. Return its finished Future: a result or an exception."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call)


class Own:
    """Draws from generators of its own, one of each library, inside other objects."""

    def __init__(self):
        self.transforms = [SimpleNamespace(rng=np.random.default_rng(1)), random.Random(2)]
        self.torch, self.old = torch.Generator().manual_seed(3), np.random.RandomState(4)

    def __len__(self):
        return 6

    def __getitem__(self, index):
        numbers = [self.transforms[0].rng.random(), self.transforms[1].random()]
        numbers += [torch.rand(1, generator=self.torch).item(), self.old.rand()]
        return {"x": torch.tensor(numbers), "number": index}


# ---- the reader of one batch


def reader(dataset, names=None, collate=None, seed=0):
    return module.ItemReader(dataset, module.ItemForm(names, collate=collate), seed, "mine.Clips")


def batch_of(read, *indices, epoch=0):
    return read(Request(epoch, torch.tensor(indices), training=True))


def draws(read, *indices, epoch=0):
    return batch_of(read, *indices, epoch=epoch)["draws"].tolist()


def noisy(items):
    """Collate, and draw."""
    values = [torch.as_tensor(item["label"]) for item in items]
    return {"x": torch.stack(values) + torch.rand(3).sum()}


def test_draws_depend_on_record_epoch_and_seed_alone():
    read, before = reader(DrawingDataset(10)), generator_state(CPU)
    assert draws(read, 3, 7, 3) == [*draws(read, 3), *draws(read, 7), *draws(read, 3)]
    rows = [*draws(read, 3, 4), *draws(read, 3, epoch=1)]
    rows += draws(reader(DrawingDataset(10), seed=1), 3)
    assert all(len(set(column)) == 4 for column in zip(*rows, strict=True))
    assert draws(pickle.loads(pickle.dumps(read)), 2) == draws(read, 2)
    assert torch.equal(generator_state(CPU), before)


def too_long(items):
    raise ValueError("too long")


@pytest.mark.parametrize(
    ("dataset", "collate", "indices", "words"),
    [
        pytest.param([{"index": 5}], None, [0], r"D230\]: .* has a field 'index'", id="index"),
        pytest.param(
            Broken(),
            None,
            [4, 5],
            r"U100\]: .*own_items.py:\d+: in Broken.__getitem__: LookupError: no such clip "
            r"\(record 5 of mine.Clips\)",
            id="user's line",
        ),
        pytest.param(
            [{"x": 1}] * 5,
            too_long,
            range(5),
            r"U100\]: .*too long \(records 0, 1, 2, 3, ... \(5\) of",
            id="collate",
        ),
    ],
)
def test_an_item_that_cannot_be_read_is_named(dataset, collate, indices, words):
    with pytest.raises(PacelineError, match=words):
        batch_of(reader(dataset, None, collate), *indices)


# ---- the source


@pytest.fixture
def make():
    """Yield a function that makes sources, which are closed at the end."""
    made = []

    def source(data, names=None, join=None, ragged=None, **options):
        context = make_context(**{"num_workers": 0, "worker_kind": None, **options})
        made.append(module.dataset_source(data, names, join, ragged, context=context))
        return made[-1]

    yield source
    for item in made:
        item.close()


def test_records_that_are_tried_take_nothing_from_generators_of_the_dataset(make):
    source = make(Own())
    source.sample(3)
    batch = source.read_batch(Request(0, torch.arange(6), training=True))
    plain_loop = Own()
    assert batch["x"].tolist() == [plain_loop[index]["x"].tolist() for index in range(6)]


def waves(source, epoch=0, start=0):
    """Return the indices, waves and texts of every batch, in the order of the epoch."""
    return [
        (batch["index"].tolist(), batch["wave"].tolist(), batch["text"])
        for batch, *_ in source.batches(epoch, start)
    ]


def test_random_items_are_the_same_for_all_workers_starts_and_threads(make):
    before = generator_state(CPU)
    alone = make(Clips())
    expected = [waves(alone, epoch) for epoch in range(2)]
    assert expected[0] != expected[1]
    for options in (
        {"num_workers": 2, "start_method": "fork"},
        {"num_workers": 1, "start_method": "forkserver"},
    ):
        source = make(Clips(), **options)
        assert [waves(source, epoch) for epoch in range(2)] == expected
    assert waves(alone, 1, start=2) == waves(source, 1, start=2) == expected[1][2:]
    assert in_thread(lambda: waves(alone, 1)).result() == expected[1]
    assert "process of its own" in " ".join(notes_of(alone))
    assert torch.equal(generator_state(CPU), before)


def test_a_collate_that_draws_is_seeded_whoever_reads(make):
    steady = Clips(draws=False)
    results = []
    for num in (0, 2):
        source = make(steady, None, noisy, num_workers=num)
        results.append([batch["x"].tolist() for batch, *_ in source.batches(1)])
    assert results[0] == results[1]


@pytest.mark.parametrize("way", ["pad", "nested", "list"])
@pytest.mark.parametrize("num", [0, 2])
def test_arrays_of_different_lengths_are_put_together_whoever_reads(make, num, way):
    items = [{"x": torch.full((number % 3, 2), number)} for number in range(8)]
    source = make(items, ragged=["x"], collate=way, num_workers=num, shuffle=False)
    batch = next(source.batches(0)).batch
    lengths = batch.get("x_length", [0, 1, 2, 0])
    rows = [part[:length].tolist() for part, length in zip(batch["x"], lengths, strict=True)]
    assert rows == [item["x"].tolist() for item in items[:4]]
    assert source.manifest.fields == {"x": Field("int64", (None, 2))}


class Unsized:
    def __getitem__(self, index):
        return {}


@pytest.mark.parametrize(
    ("data", "options", "words"),
    [
        pytest.param(
            Clips(),
            {"num_workers": 2, "worker_kind": "thread"},
            r"C230\]: workers.kind = thread: ",
            id="threads",
        ),
        pytest.param(Endless(), {}, r"C231\]: data.train = .*choose data=dataloader", id="stream"),
        pytest.param(5, {}, r"C231\]: data.train = .*choose data=dataloader", id="a number"),
        pytest.param(
            Unsized(), {"training": False}, r"C231\]: data.val = .*Unsized: .*__len__", id="unsized"
        ),
        pytest.param(Once(), {}, r"own_items.py:\d+: in Once.__len__: OSError: no", id="len fails"),
        pytest.param([], {}, r"D109\]: builtins.list|D109\]: list: has no records", id="empty"),
        pytest.param(
            Clips(),
            {"transform": Resize([4, 4], True, True)},
            r"C174\]: transform: ",
            id="transform",
        ),
        pytest.param(
            Clips(),
            {"join": fields, "ragged": ["wave"]},
            r"C232\]: data.ragged = \['wave'\], data.collate",
            id="ragged and collate",
        ),
    ],
)
def test_data_and_options_that_cannot_be_used_are_refused_before_the_first_step(
    make, data, options, words
):
    with pytest.raises(PacelineError, match=words):
        make(data, **options)


@pytest.fixture
def few_files():
    """Let this process and its children open only a few more files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 60, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_many_small_tensors_pass_from_a_process(make, few_files):
    items = [
        {"parts": {"box": torch.full((n % 3, 4), n), "on": torch.tensor(n % 2 == 0)}, "text": "a"}
        for n in range(200)
    ]
    source = make(items, batch_size=200, num_workers=1, shuffle=False)
    batch = next(source.batches(0)).batch
    for given, passed in zip(items, batch["parts"], strict=True):
        assert given["parts"]["box"].tolist() == passed["box"].tolist()
        assert given["parts"]["on"].tolist() == passed["on"].tolist()


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_dataset_that_cannot_be_sent_is_refused_before_processes_start(make, method):
    local = Clips()
    local.change = lambda wave: wave
    with pytest.raises(ConfigError, match=rf"C236\]: workers.start_method = {method}: .*Clips"):
        make(local, num_workers=1, start_method=method)
    assert waves(make(local, num_workers=1, start_method="fork"))


Pair = namedtuple("Pair", "image label")  # noqa: PYI024  # as a user may write it
WAVE = torch.zeros(3)


def column(values, **form):
    """Return the field x of a batch of records that have these values."""
    records = [{"x": value} for value in values]
    return module.stacked(records, lambda place: f"record {place}", module.ItemForm(**form))["x"]


@pytest.mark.parametrize(
    ("item", "names"),
    [
        *(({"image": 1, "label": 2}, None), (Pair(1, 2), None), ((1, 2), ["image", "label"])),
        *(([1, 2], ["image", "label"]), ({"image": 1, "other": 0, "label": 2}, ["image", "label"])),
    ],
    ids=["dict", "named tuple", "tuple", "list", "larger dict"],
)
def test_an_item_of_any_form_becomes_a_record(item, names):
    assert module.record_of(item, names, "record 0") == {"image": 1, "label": 2}


@pytest.mark.parametrize(
    ("item", "names", "words"),
    [
        ((1, 2, 3), None, r"tuple of 3 values without names; .*fields=\[image,label,field2\]"),
        ((1, 2, 3), ["a", "b"], "has 3 values, but data.fields names 2"),
        (None, None, "is a NoneType, which has no fields"),
        (None, ["a"], "is a NoneType, which has no fields"),
        (WAVE, None, "is a Tensor, which has no fields"),
        ({"a": 1}, ["b"], "has no field 'b', only a"),
    ],
    ids=["no names", "two names", "none", "none by name", "tensor", "dict"],
)
def test_an_item_without_the_fields_is_refused(item, names, words):
    with pytest.raises(DataError, match=rf"D230\]: record 7: .*{words}"):
        module.record_of(item, names, "record 7")


# ---- a batch


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([True, False], torch.bool),
        ([1, 2.5], torch.float64),
        ([np.float32(1), np.float32(2)], torch.float32),
        ([np.array([1], ">i2"), np.array([2], ">i2")], torch.int16),
        ([torch.zeros(2, dtype=torch.uint8)] * 2, torch.uint8),
        ([1j, 2j], torch.complex64),
    ],
    ids=["bool", "numbers", "float32", "big endian", "tensors", "complex"],
)
def test_numbers_are_stacked(values, dtype):
    result = column(values)
    assert (result.dtype, len(result)) == (dtype, 2)
    assert result.tolist() == [torch.as_tensor(np.asarray(v).tolist()).tolist() for v in values]


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (WAVE, torch.zeros(4), r"tensor of the shape \[4\], but a tensor of the shape \[3\]"),
        (np.zeros(3), np.zeros((3, 1)), r"array of the shape \[3, 1\]"),
        (1, None, "x is a NoneType, but a number"),
        (None, 1, "x is a number, but a NoneType"),
        ("a", WAVE, "x is a tensor"),
    ],
    ids=["length", "dimension", "none", "number", "tensor"],
)
def test_a_value_that_does_not_fit_names_its_record_and_the_way_out(first, second, words):
    with pytest.raises(DataError, match=rf"D232\]: record 1: .*{words}.*record 0"):
        column([first, second])


def test_items_of_other_fields_are_refused():
    words = r"D231\]: record 1: has the fields a, c, but record 0 has a, b"
    with pytest.raises(DataError, match=words):
        module.stacked([{"a": 1, "b": 1}, {"a": 1, "c": 1}], lambda place: f"record {place}")


# ---- fields whose arrays differ in length

SIGNAL = Field("float32", (None, 2))
TWO = Ragged(torch.arange(6.0).reshape(3, 2), torch.tensor([1, 2]))
ROWS = [np.ones((length, 2), np.float32) for length in (2, 0, 1)]


def test_arrays_are_padded_with_their_lengths_beside_them_listed_or_nested():
    padded = collated("x", SIGNAL, TWO, "pad")
    assert padded["x"].tolist() == [[[0, 1], [0, 0]], [[2, 3], [4, 5]]]
    assert padded["x_length"].tolist() == [1, 2]
    rows = [[[0, 1]], [[2, 3], [4, 5]]]
    assert [part.tolist() for part in collated("x", SIGNAL, TWO, "list")["x"]] == rows
    nested = with_nested(collated("x", SIGNAL, TWO, "nested"))["x"]
    assert nested.is_nested
    assert nested.layout == torch.jagged
    assert [part.tolist() for part in nested.unbind()] == rows


@pytest.mark.parametrize("way", ["pad", "nested", "list"])
def test_ragged_items_keep_their_rows_and_their_field_has_rows_without_a_number(way):
    form = module.ItemForm(ragged=["x"], way=way)
    batch = module.stacked([{"x": rows} for rows in ROWS], str, form)
    assert module.fields_of(batch, form) == {"x": Field("float32", (None, 2))}
    lengths = batch.get("x_length", [2, 0, 1])
    pairs = zip(with_nested(batch)["x"], lengths, strict=True)
    rows = [(len(array[:length]), float(array.sum())) for array, length in pairs]
    assert rows == [(2, 4.0), (0, 0.0), (1, 2.0)]


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"y": 1}, r"D230\]: 0: has no field 'x', only y; correct data.ragged"),
        ({"x": 1}, r"D232\]: 0: x is a number, and data.ragged wants an array"),
        ({"x": "a"}, r"D232\]: 0: x is a str, and data.ragged wants an array"),
        ({"x": WAVE, "x_length": 3}, r"D231\]: 0: has a field 'x_length'"),
    ],
    ids=["missing", "number", "text", "length"],
)
def test_values_that_cannot_be_ragged_are_refused(record, words):
    with pytest.raises(DataError, match=words):
        module.stacked([record], str, module.ItemForm(ragged=["x"]))
