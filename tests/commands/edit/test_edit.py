"""``paceline edit`` as its users meet it, and the commands that read what it makes."""

import json
from pathlib import Path

import pytest

from tests.cli.command import is_one_error_line, paceline
from tests.conftest import make_records, write_store


@pytest.fixture
def store():
    return write_store("d.h5", make_records(30))


def test_each_edit_is_a_version_that_inspect_lists_and_verify_checks(store):
    done = paceline("edit", store, "drop=label == 1")
    assert done.code == 0
    assert done.out == "d.h5: version 2 has 20 records: drop=label == 1\n"
    assert paceline("edit", store, "append=d.h5@1").code == 0
    done = paceline("inspect", store, "--json")
    versions = json.loads(done.out)["versions"]
    assert [version["num_records"] for version in versions] == [30, 20, 50]
    assert versions[2]["edit"] == "append=d.h5@1"
    lines = paceline("inspect", "d.h5@2").out.splitlines()
    assert lines[0].startswith("d.h5@2: 20 records, ")
    assert lines[2] == "version 1: 30 records, as packed"
    assert lines[3].startswith("version 2: 20 records, drop=label == 1 (2")
    done = paceline("verify", store, "workers=2")
    assert done.out.splitlines()[-1] == (
        "verified 1 stores, 50 records: 0 stores and 0 records are bad"
    )


@pytest.mark.parametrize(
    "value", ["label in [1, 2]", "label==1 or label==2", "keys.txt", "keys (1, 2).txt"]
)
def test_any_expression_and_any_name_of_a_file_say_what_to_drop(store, value):
    if value.endswith(".txt"):
        keys = [f"record-{number}\n" for number in range(30) if number % 3]
        Path(value).write_text("".join(keys))
    done = paceline("edit", store, f"drop={value}")
    assert done.out == f"d.h5: version 2 has 10 records: drop={value}\n", done.err


@pytest.mark.parametrize("damaged", ["d.h5", "d.h5.layer2"])
def test_verify_names_a_bad_record_of_the_store_or_of_a_layer(store, damaged):
    paceline("edit", store, "append=d.h5")
    data = bytearray(Path(damaged).read_bytes())
    data[data.index(make_records(30)["image"][10].tobytes())] ^= 1
    Path(damaged).write_bytes(data)
    done = paceline("verify", store, "workers=0")
    assert f"{damaged}: record 10 (record-10): does not match its CRC32" in done.out
    assert "1 records are bad" in done.out
    assert is_one_error_line(done, "D156")


def test_a_version_is_packed_into_a_plain_store_of_the_same_digest(store):
    paceline("edit", store, "drop=label == 1")
    assert paceline("pack", "input=store", f"input.path={store}", "output.path=flat.h5").code == 0
    digests = [
        json.loads(paceline("inspect", path, "--json").out)["digest"] for path in (store, "flat.h5")
    ]
    assert digests[0] == digests[1]


def test_packing_does_not_replace_a_store_with_layers(store):
    paceline("edit", store, "drop=label == 1")
    done = paceline("pack", "input=digits", f"output.path={store}")
    assert is_one_error_line(done, "D252")


@pytest.mark.parametrize(
    ("words", "number"),
    [
        ([], "C250"),
        (["append=d.h5", "drop=label == 1"], "C250"),
        (["store=d.h5@1", "append=d.h5"], "C250"),
        (["add=d.h5"], "D253"),
        (["append=missing.h5"], "D101"),
        (["drop=label ="], "C251"),
    ],
)
def test_what_is_no_edit_is_one_line_and_changes_nothing(store, words, number):
    if not any(word.startswith("store=") for word in words):
        words = [store, *words]
    assert is_one_error_line(paceline("edit", *words), number)
    assert [path.name for path in Path().glob("d.h5*")] == ["d.h5"]
