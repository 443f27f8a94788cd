import pytest

from framework.commands.edit.value_table import ValueTable, placed, read_keys
from framework.errors import DataError
from framework.store.open_store import open_store
from tests.conftest import make_records, write_store
from tests.contract.cases import edit, write_lines


@pytest.fixture
def store():
    opened = open_store(write_store("d.h5", make_records(6)))
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("naming", "names"), [("key", ["record-4", "record-0"]), ("index", ["4", "0"])]
)
def test_rows_name_records_by_key_or_by_number(store, naming, names):
    lines = [f"{naming},label", *(f"{name},1" for name in names)]
    table = ValueTable(write_lines("t.csv", lines))
    assert table.places(store).tolist() == [4, 0]
    assert table.cells("label") == ["1", "1"]


@pytest.mark.parametrize("header", ["label", "key,index,label", "key", "key,label,label"])
def test_a_header_that_does_not_say_which_record_is_refused(header):
    with pytest.raises(DataError, match=r"D253.*its header is"):
        ValueTable(write_lines("t.csv", [header, "1,2,3"]))


@pytest.mark.parametrize("index", ["6", "-1", "x", "1.0", "9" * 30])
def test_a_number_of_no_record_is_refused(store, index):
    table = ValueTable(write_lines("t.csv", ["index,label", f"{index},1"]))
    with pytest.raises(DataError, match=r"D254.*line 2.*is not the number of a record"):
        table.places(store)


def test_a_short_row_is_refused(store):
    table = ValueTable(write_lines("t.csv", ["index,label", "1"]))
    with pytest.raises(DataError, match=r"D253.*line 2"):
        table.places(store)


@pytest.mark.parametrize("keys", [["record-1", "record-1"], ["record-7"]])
def test_unknown_and_repeated_keys_are_refused(store, keys):
    with pytest.raises(DataError, match=f"D254.*{keys[-1]}"):
        placed(store, keys, "keys.txt")


def test_a_key_of_two_records_is_refused():
    source = write_store("d.h5", make_records(3))
    edit(source, "append", "d.h5@1")
    with pytest.raises(DataError, match=r"D254.*record-1.*but 1 and 4 have this key"):
        placed(open_store(source), ["record-1"], "keys.txt")


def test_keys_are_lines():
    assert read_keys(write_lines("keys.txt", ["a b", "", "c\r"])) == ["a b", "c"]


def test_columns_are_numbers_and_texts_but_no_files():
    lines = ["index,n,x,t", "0,1,0.5,a", "1,2,1,b"]
    fields = ValueTable(write_lines("t.csv", lines)).as_input().manifest.fields
    assert [fields[name].dtype for name in ("n", "x", "t")] == ["int64", "float32", "uint8"]
    table = ValueTable(write_lines("f.csv", ["index,mask", "0,a.png"]))
    with pytest.raises(DataError, match=r"D253.*names files"):
        table.as_input()
