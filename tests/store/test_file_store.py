"""What HDF5 and LMDB stores have in common."""

import os
import re
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from framework.contracts.records import SCHEMA, ChannelStatistics, Field, Manifest, Shard
from framework.data import hdf5, lmdb
from framework.data.source import StoreSource
from framework.errors import DataError
from framework.store import file_store, hdf5_store, lmdb_store
from framework.store.file_store import content_crcs, extended_crcs, from_json, to_json
from tests.conftest import FIELDS, edited_manifest, make_context, make_records, write_store
from tests.contract.cases import IMAGE_FIELDS, jpeg, micros, plain, write_case
from tests.store.fuzz import flips, judge, truncations

WHOLE = Manifest(
    5,
    {"image": Field("uint8", (3, None, None), "image"), "label": Field("int64", ())},
    ["Katze", "犬"],
    [2, 3],
    "folder x",
    {"size": [4, 4], "encode": "keep"},
    "ab" * 32,
    [Shard("000000.h5", 5, 999, "cd" * 32, "ef" * 32)],
    {"image": ChannelStatistics((0.25, 0.5, 0.75), (0.125, 0.0, 1.0))},
)


def _changed(**changes):
    return edited_manifest(to_json(WHOLE), **changes)


FIELD = {"dtype": "uint8", "shape": [], "encoding": "raw", "kind": "raw"}
IMPOSSIBLE = [
    {"num_records": -1},
    *({"fields": {"x": {**FIELD, "dtype": name}}} for name in ("nonsense", ">i4")),
    {"fields": {"x": {**FIELD, "shape": None}}},
    {"fields": {"x": {**FIELD, "encoding": "rav"}}},
    {"shards": [{"name": "0.h5", "first": 0}]},
]


TEXTS = ["", "{", "{}", '{"fields": {"x": {}}, "num_records": 1}', b"\xff\xfe", "[" * 100_000]
TEXTS += [_changed(**changes) for changes in IMPOSSIBLE]


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_a_damaged_text_is_named(text):
    with pytest.raises(DataError, match=r"D104.*x\.h5.*damaged"):
        from_json("x.h5", text)


@pytest.mark.parametrize(("schema", "fix"), [(SCHEMA - 1, "pack it again"), (SCHEMA + 1, "update")])
def test_another_schema_is_named(schema, fix):
    words = rf"D104.*x\.h5.*schema {schema}, this version reads {SCHEMA}.*{fix}"
    with pytest.raises(DataError, match=words):
        from_json("x.h5", _changed(schema=schema))


def test_every_flipped_bit_of_the_text_is_noticed():
    refused = 0
    for data in flips(to_json(WHOLE).encode(), 2000):
        try:
            assert from_json("x.h5", data) == WHOLE  # a digit of \\u72ac in upper case
        except DataError as error:
            refused += str(error).startswith("error[D104]: x.h5")
    assert refused > 1900


@pytest.mark.parametrize("name", ["\udcff", "a\nb", "Ä", "👩\u200d🚀", "\u202etxt"])
def test_any_name_survives(name):
    whole = replace(WHOLE, classes=[name], source=name)
    assert from_json("x.h5", to_json(whole)) == whole
    assert from_json("x.lmdb", to_json(whole).encode(errors="surrogateescape")) == whole


STORES = {"h5": hdf5_store.HDF5Store, "lmdb": lmdb_store.LMDBStore}
SOURCES = {"h5": hdf5.hdf5_source, "lmdb": lmdb.lmdb_source}


def _spoil(path, payload):
    """Flip one bit of each copy of ``payload`` (LMDB leaves some): the file stays the same."""
    middle = len(payload) // 2
    spoiled = payload[:middle] + bytes([payload[middle] ^ 16]) + payload[middle + 1 :]
    data = Path(path).read_bytes()
    assert payload in data
    with open(path, "r+b") as file:
        file.write(data.replace(payload, spoiled))


@given(st.lists(st.binary(max_size=40), max_size=8), st.binary(max_size=9))
def test_a_records_crc_is_over_all_its_fields_in_order(images, tail):
    fields = {"a": Field("uint8", (1, None, None), "image"), "b": Field("uint8", (len(tail),))}
    tails = np.frombuffer(tail * len(images), np.uint8).reshape(len(images), len(tail))
    records = {"a": images, "b": tails}
    assert content_crcs(records, fields).tolist() == [crc32(image + tail) for image in images]


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("size", [0, 1, 8, 61])
def test_the_crcs_of_arrays_are_zlibs_however_they_are_computed(monkeypatch, compiled, size):
    if not compiled:
        monkeypatch.setattr(file_store, "find", lambda _: None)
    rows = np.random.default_rng(size).integers(0, 256, (50, size), np.uint8)
    labels = torch.arange(50, dtype=torch.int16)
    fields = {"a": Field("uint8", (size,)), "b": Field("int16", ())}
    expected = [crc32(r.tobytes() + b.tobytes()) for r, b in zip(rows, labels.numpy(), strict=True)]
    crcs = content_crcs({"a": rows, "b": labels}, fields)
    assert crcs.tolist() == expected
    numbers = np.arange(7, 57)
    assert extended_crcs(crcs, numbers.astype(">u8")).tolist() == [
        crc32(number.to_bytes(8, "big"), crc)
        for number, crc in zip(numbers.tolist(), expected, strict=True)
    ]


@pytest.mark.parametrize("kind", ["hdf5", "hdf5_images", "lmdb", "lmdb_images"])
def test_flipped_bits_are_refused_found_or_harmless_and_truncations_refused(kind):
    path, records = write_case(kind, 40)
    data, suffix = Path(path).read_bytes(), Path(path).suffix[1:]
    counts = judge(STORES[suffix], suffix, flips(data, 100), plain(records), 40)
    assert counts.keys() <= {"right", "found", "refused"}
    cuts = truncations(data, 50)
    assert judge(STORES[suffix], suffix, cuts, plain(records), 40) == {"refused": 50}


@pytest.mark.parametrize("suffix", STORES)
@pytest.mark.parametrize(
    ("verify", "spoil_before", "passed"),
    [
        ("off", 0, [0, 1, 2]),
        ("first_epoch", 0, []),  # no pass has come to its end
        *(("first_epoch", 1, [0, 1, 2]), ("always", 0, []), ("always", 1, [0])),
        ("always", 2, [0, 1]),
    ],
)
def test_records_are_verified_on_request(suffix, verify, spoil_before, passed):
    records = make_records(12)
    path = write_store(f"x.{suffix}", records)
    source = SOURCES[suffix](path, context=make_context(verify=verify))
    good, words = [], list[str]()
    for epoch in range(3):
        if epoch == spoil_before:
            _spoil(path, records["image"][7].tobytes())
            source.store._identity = None  # as if the disk, not a program, changed it
        try:
            micros(source, epoch)
            good.append(epoch)
        except DataError as error:
            words.append(str(error))
    source.close()
    assert good == passed
    assert all(re.match(r"error\[D119\].*record 7 \(record-7\)", line) for line in words)


class CountingStore(hdf5_store.HDF5Store):
    num_checked = 0

    def damaged(self, indices, records):
        self.num_checked += len(indices)
        return super().damaged(indices, records)


@pytest.mark.parametrize("options", [{}, {"accumulate": 2}, {"virtual_ranks": 3}])
@pytest.mark.parametrize(
    ("passes", "counts"),  # a pass is its epoch, first step and number of batches
    [
        ([(0, 0, 3), (0, 0, 3), (0, 0, 3)], [12, 0, 0]),  # as validation, which is always epoch 0
        ([(0, 0, 2), (0, 0, 3), (1, 0, 3)], [8, 12, 0]),  # a pass that was cut off does not count
        ([(4, 1, 2), (5, 0, 3)], [8, 0]),  # a resumed run
    ],
)
def test_records_are_verified_until_a_pass_has_come_to_its_end(passes, counts, options):
    path = write_store("x.h5", make_records(12))
    context = make_context(4, verify="first_epoch", num_workers=0, **options)
    source = StoreSource(CountingStore(path), context)
    num_parts = {"accumulate": 2, "virtual_ranks": 3}
    parts = next((num_parts[name] for name in options if name in num_parts), 1)
    for (epoch, start, num_batches), count in zip(passes, counts, strict=True):
        source.store.num_checked = 0
        with closing(source.batches(epoch, start)) as batches:
            for _ in islice(batches, num_batches * parts):  # as a loop that breaks after its last
                pass
        assert source.store.num_checked == count
    source.close()


def test_the_other_damaged_records_of_a_batch_are_counted():
    records = {"image": [jpeg(number) for number in range(8)], "label": np.arange(8)}
    path = write_store("x.h5", records, IMAGE_FIELDS)
    for index in (2, 5, 6):
        _spoil(path, records["image"][index])
    source = hdf5.hdf5_source(path, context=make_context(8, shuffle=False, verify="always"))
    with pytest.raises(
        DataError, match=r"D119.*record 2 \(record-2\).*CRC32 differs, and 2 more of its batch"
    ):
        micros(source)
    source.close()


BY_PATH = {"x.h5": hdf5_store.HDF5Store, "x.lmdb": lmdb_store.LMDBStore}
WRITERS = {"x.h5": hdf5_store.HDF5Writer, "x.lmdb": lmdb_store.LMDBWriter}
INTEGERS = [f"{kind}{bits}" for kind in ("uint", "int") for bits in (8, 16, 32, 64)]
DTYPES = [*INTEGERS, "float16", "float32", "float64", "bool", "complex64"]
each_kind = pytest.mark.parametrize("path", BY_PATH)


@each_kind
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (8,), (2, 3)])
def test_every_number_type_comes_back_as_it_was(path, dtype, shape):
    values = (np.random.default_rng(0).random((5, *shape)) * 100).astype(dtype)
    write_store(path, {"x": values}, {"x": Field(dtype, shape)})
    stored = BY_PATH[path](path).read(torch.tensor([4, 0, 4]))["x"]
    assert np.array_equal(stored.numpy(), values[[4, 0, 4]])
    assert stored.numpy().dtype == values.dtype


@each_kind
def test_a_writer_refuses_to_commit_fewer_records_than_announced(path):
    writer = WRITERS[path](path, fields=FIELDS, num_records=4)
    writer.write(make_records(3), ["a", "b", "c"])
    with pytest.raises(DataError, match=rf"D105.*{path}.*3 of 4 records were written"):
        writer.close(Manifest(4, FIELDS))
    writer.abort()
    writer.abort()
    assert os.listdir() == []
