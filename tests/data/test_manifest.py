import json

import pytest

from framework.contracts import Field, Manifest
from framework.data.manifest import SCHEMA, from_json, to_json
from framework.errors import DataError

WHOLE = Manifest(
    5,
    {"image": Field("uint8", (3, None, None), "image"), "label": Field("int64", ())},
    ["Katze", "犬"],
    [2, 3],
    "folder x",
    {"size": [4, 4], "encode": "keep"},
)


def _changed(**changes):
    return json.dumps({**json.loads(to_json(WHOLE)), **changes})


def test_a_manifest_comes_back_from_its_text():
    assert from_json("x.h5", to_json(WHOLE)) == WHOLE


def test_a_manifest_comes_back_from_bytes():
    assert from_json("x.lmdb", to_json(WHOLE).encode()) == WHOLE


def test_letters_stay_readable_in_the_file():
    assert "犬" in to_json(WHOLE)


def test_what_may_be_left_out_may_be_missing():
    found = from_json("x.h5", '{"num_records": 1, "fields": {}}')
    assert (found.classes, found.class_counts, found.options, found.schema) == ((), (), {}, SCHEMA)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[]",
        "3",
        "{}",
        '{"num_records": 3}',
        '{"fields": {}}',
        '{"fields": {"x": {}}, "num_records": 1}',
        b"\xff\xfe",
    ],
)
def test_a_damaged_manifest_is_named(text):
    with pytest.raises(DataError, match=r"D104.*x\.h5.*damaged"):
        from_json("x.h5", text)


@pytest.mark.parametrize("schema", [None, "two", [1]])
def test_a_schema_that_is_no_number_is_damage(schema):
    with pytest.raises(DataError, match=r"D104.*x\.h5"):
        from_json("x.h5", _changed(schema=schema))


def test_a_newer_schema_is_named():
    with pytest.raises(DataError, match=rf"D104.*x\.h5.*schema {SCHEMA + 1}.*up to {SCHEMA}.*update"):
        from_json("x.h5", _changed(schema=SCHEMA + 1))


def test_a_newer_schema_is_named_even_where_it_has_keys_we_do_not_know():
    with pytest.raises(DataError, match=rf"D104.*schema {SCHEMA + 1}"):
        from_json("x.h5", _changed(schema=SCHEMA + 1, shards=["a", "b"]))
