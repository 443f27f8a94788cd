from dataclasses import replace

import pytest

from framework.contracts.records import ChannelStatistics, Field, Manifest, Shard
from framework.errors import DataError
from framework.store.manifest import SCHEMA, from_json, to_json
from tests.conftest import edited_manifest
from tests.store.fuzz import flips

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


@pytest.mark.parametrize("first_key", [-1, 1.5, "0", True, 1 << 62, 1 << 80])
def test_an_impossible_first_key_is_refused(first_key):
    with pytest.raises(DataError, match=r"D104.*x\.h5"):
        from_json("x.h5", _changed(first_key=first_key))


@pytest.mark.parametrize(
    "statistics",
    [
        {"depth": {"mean": [0.5], "std": [0.5]}},
        {"image": {"mean": [0.5]}},
        {"image": {"mean": [0.5], "std": [-0.5]}},
        {"image": {"mean": [float("nan")], "std": [0.5]}},
        [0.5],
    ],
)
def test_impossible_statistics_are_damage(statistics):
    with pytest.raises(DataError, match=r"D104.*damaged"):
        from_json("x.h5", _changed(statistics=statistics))


@pytest.mark.parametrize("schema", [1, SCHEMA - 1])
def test_a_store_of_an_older_schema_is_to_be_packed_again(schema):
    with pytest.raises(DataError, match=rf"D104.*x\.h5.*schema {schema}.*pack it again"):
        from_json("x.h5", _changed(schema=schema))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "{}",
        '{"fields": {}}',
        '{"fields": {"x": {}}, "num_records": 1}',
        b"\xff\xfe",
    ],
)
def test_a_damaged_manifest_is_named(text):
    with pytest.raises(DataError, match=r"D104.*x\.h5.*damaged"):
        from_json("x.h5", text)


@pytest.mark.parametrize(
    "field",
    [
        {"dtype": "nonsense", "shape": [], "encoding": "raw", "kind": "raw"},
        {"dtype": ">i4", "shape": [], "encoding": "raw", "kind": "raw"},
        {"dtype": "(2,)i4", "shape": [], "encoding": "raw", "kind": "raw"},
        {"dtype": "uint8", "shape": [-1], "encoding": "raw", "kind": "raw"},
        {"dtype": "uint8", "shape": None, "encoding": "raw", "kind": "raw"},
        {"dtype": "uint8", "shape": [], "encoding": "rav", "kind": "raw"},
        "uint8",
    ],
)
def test_an_impossible_field_is_damage(field):
    with pytest.raises(DataError, match=r"D104.*x\.h5.*damaged"):
        from_json("x.h5", _changed(fields={"x": field}, statistics={}))


SHARD = {"name": "0.h5", "num_records": 5, "size_bytes": 9, "sha256": "", "digest": ""}


@pytest.mark.parametrize(
    "changes", [{"num_records": -1}, {"num_records": "5"}, {"num_records": 1.5}, {"first": 0}]
)
def test_an_impossible_shard_is_damage(changes):
    with pytest.raises(DataError, match=r"D104.*x.*damaged"):
        from_json("x", _changed(shards=[{**SHARD, **changes}]))


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"num_records": ' + "9" * 5000 + "}", '{"num_records": 1e999, "fields": {}}'],
)
def test_hostile_text_is_damage(text):
    with pytest.raises(DataError, match=r"D104.*x\.h5"):
        from_json("x.h5", text)


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


def test_a_newer_schema_is_named():
    with pytest.raises(
        DataError, match=rf"D104.*x\.h5.*schema {SCHEMA + 1}, this version reads {SCHEMA}.*update"
    ):
        from_json("x.h5", _changed(schema=SCHEMA + 1))


VIDEO = {"dtype": "uint8", "shape": [None, None, None, 3], "encoding": "frames", "kind": "video"}


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "raw"},
        {"encoding": "ragged"},
        {"shape": [None, 4, None, 3]},
        {"shape": [5, 4, 4, 3]},
        {"shape": [None, 4, 4, 2]},
    ],
)
def test_a_video_that_cannot_be_is_refused(changes):
    text = to_json(Manifest(0, {"video": Field("uint8", (None, None, None, 3), "frames")}))
    assert from_json("x.h5", text).fields["video"].kind == "video"
    fields = {"video": {**VIDEO, **changes}}
    with pytest.raises(DataError, match="D104"):
        from_json("x.h5", edited_manifest(text, fields=fields))
