from pathlib import Path

import numpy as np
import pytest
import torch

from framework.contracts.records import Field, RecordStore
from framework.errors import ConfigError
from framework.media.decode import encode_jpeg, encode_png
from framework.store.folder_store import FolderStore
from framework.store.store_facts import START_BYTES, StoreFacts
from tests.conftest import write_store
from tests.contract.cases import RAGGED_FIELDS, STORES, make_store, open_case, plain_values
from tests.contract.cases import ragged_records as records_of


@pytest.mark.parametrize("kind", STORES)
def test_a_column_is_a_field_of_every_record(kind):
    store, records = make_store(kind)
    for name, field in store.manifest.fields.items():
        for column in (store.column(name), RecordStore.column(store, name)):
            assert plain_values(column) == plain_values(records[name])
        if field.encoding == "ragged":
            assert store.lengths(name).tolist() == [len(row) for row in records[name]]
    store.close()


def facts(*names):
    fields = {name: RAGGED_FIELDS[name] for name in names}
    records = {name: records_of(5)[name] for name in names}
    return StoreFacts(open_case("hdf5", write_store("some.h5", records, fields)))


def test_a_question_without_an_answer_names_the_choices():
    with pytest.raises(ConfigError, match=r"C200.*field = null.*choose one of text, blob"):
        facts("label", "text", "blob").lengths(None)
    with pytest.raises(ConfigError, match=r"C200.*field = label.*choose one of blob"):
        facts("label", "blob").lengths("label")
    with pytest.raises(ConfigError, match=r"C200.*no field .* has any length.*order=full"):
        facts("label").lengths(None)
    with pytest.raises(ConfigError, match=r"C200.*cannot tell"):
        StoreFacts(None).lengths(None)


def test_records_are_known_by_their_number_unless_a_field_has_that_name():
    assert facts("label").names == ["label", "record"]
    assert facts("label").answer("record").tolist() == [0, 1, 2, 3, 4]
    fields = {"record": Field("int64", ())}
    store = open_case("hdf5", write_store("own.h5", {"record": torch.tensor([8, 9])}, fields))
    assert StoreFacts(store).names == ["record"]
    assert StoreFacts(store).answer("record").tolist() == [8, 9]


def test_the_sizes_of_photographs_are_read_from_the_starts_of_their_files(monkeypatch):
    Path("in/a").mkdir(parents=True)
    noise = np.random.default_rng(0).integers(0, 256, (400, 300, 3), np.uint8)
    Path("in/a/1.jpg").write_bytes(encode_jpeg(noise.transpose(2, 0, 1), 95))
    Path("in/a/2.png").write_bytes(encode_png(noise.transpose(2, 0, 1)))
    Path("in/a/3.png").write_bytes(encode_png(noise[:50].transpose(2, 0, 1)))
    sizes = [path.stat().st_size for path in sorted(Path("in/a").iterdir())]
    assert min(sizes[:2]) > START_BYTES > sizes[2]
    store = FolderStore("in")
    whole = []
    read = store.read
    monkeypatch.setattr(
        store, "read", lambda *given: whole.extend(given[0].tolist()) or read(*given)
    )
    facts = StoreFacts(store)
    assert facts.answer("height").tolist() == [400, 400, 50]
    assert facts.answer("width").tolist() == [300, 300, 300]
    assert whole == [1]
