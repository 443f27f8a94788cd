import torch

from framework.commands.diagnose.record_sample import pack_all, write_sample
from framework.commands.diagnose.verdict import Repack
from framework.store.open_store import open_store
from tests.commands.diagnose.setting import write_photos
from tests.conftest import make_records, write_store


def test_a_sample_is_packed_as_all_would_be_and_repeated(tmp_path):
    photos = write_photos(tmp_path / "photos")
    repack = Repack(
        "folder", photos, "unused", "hdf5", {"encode": "raw", "size": [16, 16], "layout": "hwc"}
    )
    sample = write_sample(repack, str(tmp_path), 100, 30.0)
    manifest = open_store(sample.path).manifest
    assert manifest.num_records == 5 * 24
    assert manifest.fields["image"].shape == (16, 16, 3)
    assert sample.record_s > 0


def test_a_sample_ends_with_its_time(tmp_path):
    sample = write_sample(
        Repack("folder", write_photos(tmp_path / "photos"), "unused"), str(tmp_path), 24, 0.0
    )
    store = open_store(sample.path)
    keys = store.keys(torch.arange(store.manifest.num_records))
    assert len(keys) == 24
    assert len({key.partition("/")[2] for key in keys}) == 8


def test_all_is_packed_to_where_the_advice_says(tmp_path):
    path = write_store(str(tmp_path / "a.h5"), make_records(20))
    val = {"val": path}, {"val": str(tmp_path / "v")}
    pack_all(Repack("store", path, str(tmp_path / "t"), "lmdb", {}, *val))
    assert [
        open_store(str(tmp_path / name)).manifest.num_records for name in ("t.lmdb", "v.lmdb")
    ] == [20, 20]
