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


FIELD = {"dtype": "uint8", "shape": [], "encoding": "raw", "kind": "raw"}
SHARD = {"name": "0.h5", "num_records": 5, "size_bytes": 9, "sha256": "", "digest": ""}
IMPOSSIBLE = [
    *({"first_key": key} for key in (-1, 1.5, "0", True, 1 << 62)),
    {"statistics": {"depth": {"mean": [0.5], "std": [0.5]}}},
    {"statistics": {"image": {"mean": [0.5]}}},
    {"statistics": {"image": {"mean": [0.5], "std": [-0.5]}}},
    {"statistics": {"image": {"mean": [float("nan")], "std": [0.5]}}},
    *({"fields": {"x": {**FIELD, "dtype": name}}} for name in ("nonsense", ">i4", "(2,)i4")),
    *({"fields": {"x": {**FIELD, "shape": shape}}} for shape in ([-1], None)),
    {"fields": {"x": {**FIELD, "encoding": "rav"}}},
    *({"shards": [{**SHARD, "num_records": count}]} for count in (-1, "5", 1.5)),
    {"shards": [{**SHARD, "first": 0}]},
]


@pytest.mark.parametrize("changes", IMPOSSIBLE, ids=range(len(IMPOSSIBLE)))
def test_what_no_writer_writes_is_damage(changes):
    if "fields" in changes:
        changes = {**changes, "statistics": {}}
    with pytest.raises(DataError, match=r"D104.*x\.h5.*damaged"):
        from_json("x.h5", _changed(**changes))


TEXTS = ["", "{", "{}", '{"fields": {"x": {}}, "num_records": 1}', b"\xff\xfe", "[" * 100_000]


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
