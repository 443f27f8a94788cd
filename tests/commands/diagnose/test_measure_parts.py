from contextlib import closing

import pytest

from framework.cli.allowed import Grant
from framework.cli.compose_config import composed
from framework.commands.diagnose.measure_parts import (
    Setting,
    gather_facts,
    settings_of,
    storage_of,
    storage_of_items,
)
from framework.config.paths import ROOT
from framework.contracts.records import Field, Manifest
from framework.store.hdf5_store import HDF5Store, HDF5Writer
from tests.commands.diagnose.setting import setting, write_photos
from tests.conftest import make_records, write_store
from tests.diagnosis.cases import facts

SMALL = ["model=resnet9", "model.width=2", "batch_size=8"]


def silent(_):
    pass


def test_every_part_of_a_run_on_images_has_a_rate(tmp_path):
    photos = write_photos(tmp_path / "photos")
    words = [
        *SMALL,
        "data=folder",
        f"data.train={photos}",
        "transform=resize",
        "transform.size=[32,32]",
    ]
    facts = gather_facts(setting(*words), 1.0, silent)
    rates = facts.rates
    assert all(
        rate > 0
        for rate in (
            rates.read,
            rates.prepare,
            rates.loader,
            rates.other,
            rates.compute,
            rates.whole,
        )
    )
    assert rates.read > rates.prepare
    assert rates.prepare_system_cores >= 0
    assert (facts.storage.form, facts.storage.image_size, facts.storage.even) == (
        "folder",
        (120, 160),
        True,
    )
    assert facts.convolutional
    assert rates.copy is None


def test_a_function_in_a_thread_slows_a_step_of_small_operations(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from planted.loading import PLANTED

    planted = next(planted for planted in PLANTED if planted.cause == "slowed_step")
    configured = composed(planted.words(tmp_path), Grant(frozenset({"allow_targets"}), ""))
    with closing(Setting(*configured, threads=1).probe()) as probe:
        alone = probe.compute(1.0, 0.3)
        together = probe.train(1.0, 0.3)
    rates = {"spans_s": together.spans_s, "compute_spans_s": alone.spans_s}
    assert facts(**rates).slowed_share > 0.25
    assert together.spans_s["wait"] < sum(together.spans_s.values()) / 2


CLIPS = (
    *("data=dataset", "data.train={_target_: tests.data.own_items.Clips, count: 40}"),
    *("data.fields=[wave,label]", "augment=none", "objective.input=wave", "batch_size=8"),
    *("model=null", "+model._target_=torch.nn.Linear", "+model.in_features=3"),
    *("+model.out_features=2", "allow_targets=[tests]"),
)


def of_dataset(*words):
    return Setting(*composed([*CLIPS, *words], Grant(frozenset({"allow_targets"}), "")))


def test_a_dataset_of_the_users_is_measured_by_one_thread():
    facts = gather_facts(of_dataset("workers.num=1"), 0.5, silent)
    assert facts.rates.prepare > 0
    assert (facts.rates.read, facts.rates.prepare_two) == (None, None)
    settings = facts.settings
    assert (settings.workers, settings.kind, settings.has_function) == (1, "process", True)
    storage = facts.storage
    assert (storage.form, storage.record_bytes, storage.draws) == ("dataset", 20, True)
    assert "input.dataset={_target_: tests.data.own_items.Clips, count: 40}" in storage.pack_words
    assert "'input.fields=[wave, label]'" in storage.pack_words


@pytest.mark.parametrize(
    ("words", "packed"),
    [
        ("data.fields=[wave,label,text]", "'input.fields=[wave, label, text]' output"),
        ("data.ragged=[wave]", "'input.kinds={wave: ragged}' output"),
        ("data.collate=tests.data.own_items.fields", None),
    ],
)
def test_a_dataset_is_packed_as_it_is_read_if_a_store_takes_it(words, packed):
    with closing(of_dataset("workers.num=0", "data.fields=null", words).probe()) as probe:
        pack_words = storage_of_items(probe.assembly.train_source, probe.config).pack_words
    assert packed in pack_words if packed else pack_words == ""


def test_chunks_and_shards_are_seen(tmp_path):
    records, fields = (
        make_records(40),
        {"image": Field("uint8", (3, 4, 4)), "label": Field("int64", ())},
    )
    writer = HDF5Writer(str(tmp_path / "c.h5"), 16, "gzip", fields=fields, num_records=40)
    writer.write(records, [""] * 40)
    writer.close(Manifest(40, fields))
    storage = storage_of(
        HDF5Store(str(tmp_path / "c.h5")), {"data": {"train": str(tmp_path / "c.h5"), "val": None}}
    )
    assert (storage.form, storage.chunk_records, storage.encoding) == ("hdf5", 16, "raw")
    assert storage.record_bytes == 3 * 4 * 4 + 8
    assert storage.cached == 1.0


def test_the_workers_are_those_that_null_became(tmp_path):
    path = write_store(str(tmp_path / "a.h5"), make_records(20))
    probe = setting("data.train=" + path, *SMALL).probe()
    chosen = settings_of(probe)
    probe.close()
    assert (chosen.workers, chosen.loader, chosen.precision, chosen.size, chosen.has_function) == (
        0,
        "prefetch",
        "fp32",
        None,
        False,
    )
