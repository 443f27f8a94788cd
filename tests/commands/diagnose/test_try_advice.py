from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch

from framework.commands.diagnose import try_advice
from framework.diagnosis.facts import Repack, RunFacts, Verdict
from framework.diagnosis.judge import Diagnosis, cause_of
from framework.errors import ResourceError
from framework.store.open_store import open_store
from tests.commands.diagnose.setting import compose_of, setting, write_photos
from tests.conftest import make_records, write_store
from tests.diagnosis.cases import FINE, LIMITED, SLOW_RECORDS, facts

WAIT = {"parts": ("wait",)}
SMALL = ["model.width=4", "batch_size=8"]


def silent(_):
    pass


@pytest.mark.slow
def test_a_diagnosis_measures_judges_and_tries(tmp_path):
    path = write_store(str(tmp_path / "a.h5"), make_records(400))
    words = [*SMALL, f"data.train={path}", "workers.kind=process", "workers.num=6", "loader=plain"]
    result = try_advice.diagnose(compose_of(*words), 20.0, silent)
    judged = {v.rule: v for v in (*result.verdicts, *result.rejected)}
    assert "lower_workers" in judged
    assert any(verdict.tried for verdict in judged.values())
    assert result.limit.endswith(".")
    assert all(verdict.modeled >= 1 for verdict in judged.values())
    assert result.facts.syncs == ()


def test_applying_a_repack_writes_the_store_to_its_target(tmp_path):
    path = write_store(str(tmp_path / "a.h5"), make_records(80))
    compose = compose_of(*SMALL, f"data.train={path}")
    result = try_advice.diagnose(compose, 0.5, silent)
    repack = Repack("store", {"train": (path, str(tmp_path / "b"))})
    advice = Verdict("r", "s", "w", 1.0, (), repack)
    applied = try_advice.apply(replace(result, verdicts=(advice,)), compose, 0.5, silent).applied
    assert (tmp_path / "b.h5").exists()
    assert "b.h5" in applied.note


def test_a_trial_reads_records_that_no_trial_before_it_has_read(epochs_read):
    run_setting = setting("data=synthetic", "data.source.num_records=100000", "batch_size=8")
    try_advice.measured_rate(run_setting, False, 0.1, 0.0, 1)
    try_advice.measured_rate(run_setting, False, 0.1, 0.0, 2)
    epochs = [epoch for epoch in epochs_read if epoch]  # settings look at the first
    assert epochs == sorted(set(epochs))
    assert min(epochs) > 100


def test_advice_that_was_tried_and_lost_is_no_advice_and_no_cause():
    slow = facts(workers=0, loader="plain")
    lost = Verdict("processes", "p", "w", 0.22, ("a=1",), tried=True, modeled=3.0, **WAIT)
    assert cause_of(slow, [], [lost]) is None
    diagnosed = Diagnosis(slow, "processes", "limit", (), (lost,), 1.0)
    assert diagnosed.best is None
    assert replace(diagnosed, rejected=(replace(lost, gain=1.01),)).best is not None


def test_trials_end_with_the_time(monkeypatch):
    slow = facts(workers=0, loader="plain")
    monkeypatch.setattr(try_advice, "gather_facts", lambda *_: slow)
    said = []
    result = try_advice.diagnose(compose_of("data=synthetic", "batch_size=8"), 1e-3, said.append)
    assert not any(verdict.tried for verdict in (*result.verdicts, *result.rejected))
    assert said == []


def trials(monkeypatch, known, rate):
    """Diagnose at the ``rate`` of each advice's words. Return the verdicts and what was tried."""
    tried = []

    def measured(changed, *_):
        tried.append(tuple(changed.words))
        return rate(str(changed.words))

    monkeypatch.setattr(try_advice, "gather_facts", lambda *_: known)
    monkeypatch.setattr(try_advice, "measured_rate", measured)
    result = try_advice.diagnose(Changed, 40.0, silent)
    return {v.rule: v for v in (*result.verdicts, *result.rejected)}, tried


class Changed(NamedTuple):
    """What advice changes of a setting, in place of it."""

    words: Sequence[str]
    threads: int | None = None


STEPS = {**FINE, "whole": 1000.0, "compute": 1000.0}


@pytest.mark.parametrize(("save_s", "gain", "tried"), [(0.01, 3.0, True), (2.0, None, False)])
def test_what_a_run_does_often_is_tried_in_short_runs(monkeypatch, save_s, gain, tried):
    run = RunFacts(1000, save_s=save_s, save_every={"checkpoint.every_steps": 1.0})
    known = facts(**STEPS, run=run)
    verdicts, _ = trials(monkeypatch, known, lambda words: 300.0 if "steps" in words else 100.0)
    saving = verdicts["frequent_saving"]
    assert saving.tried == tried
    assert saving.gain == (gain or saving.modeled)


def test_slow_records_are_tried_without_them(monkeypatch):
    known = facts(slow_records={**SLOW_RECORDS, "num_slow": 3}, **LIMITED)
    verdicts, _ = trials(monkeypatch, known, lambda words: 250.0 if "in [7]" in words else 100.0)
    assert verdicts["slow_records"].gain == 2.5
    assert verdicts["slow_records"].tried


def test_the_first_trial_of_the_best_advice_counts_beside_the_longer_ones(monkeypatch):
    rates = iter([100.0, 200.0, 100.0, *([100.0, 400.0, 400.0, 100.0] * 2)])
    known = facts(workers=0, loader="plain")
    monkeypatch.setattr(try_advice, "NUM_TRIALS", 1)
    verdicts, tried = trials(monkeypatch, known, lambda _: next(rates))
    best = next(verdict for verdict in verdicts.values() if verdict.tried)
    assert len(tried) == 9
    assert (best.gain, best.spread) == (4.0, 1.0)


@pytest.mark.parametrize(
    ("modeled", "rate", "num_tried"), [(1.0, 150.0, 1), (1.1, 150.0, 2), (1.0, 90.0, 2)]
)
def test_after_advice_that_gained_only_what_may_gain_is_tried(
    monkeypatch, modeled, rate, num_tried
):
    better = Verdict("a", "s", "w", 2.0, ("a=1",))
    other = Verdict("b", "s", "w", modeled, ("b=1",))
    monkeypatch.setattr(try_advice, "verdicts_of", lambda _: [better, other])
    _, tried = trials(monkeypatch, facts(), lambda words: rate if "a=1" in words else 100.0)
    assert len({words for words in tried if words}) == num_tried


@pytest.mark.parametrize("words", [{"overrides": ("a=1",)}, {"trial": ("a=1",)}])
def test_a_trial_that_ends_with_an_error_fails_only_the_advice(monkeypatch, words):
    advice = Verdict("a", "s", "w", 2.0, **words, action="act", modeled=2.0, parts=("wait",))
    monkeypatch.setattr(try_advice, "verdicts_of", lambda _: [advice])

    def rate(words):
        if words != "()":
            raise ResourceError(104, "memory", "used up", "free memory")
        return 100.0

    verdicts, _ = trials(monkeypatch, facts(), rate)
    assert ("R104" in verdicts["a"].failed) == ("overrides" in words)
    assert (verdicts["a"].gain, verdicts["a"].tried) == (2.0, False)


def test_advice_against_the_cause_is_applied_before_larger_gains():
    other = Verdict("other_programs", "", "", 5.0, action="end them")
    cause = Verdict("frequent_validation", "", "", 3.0, ("validate_every=100",))
    made = Diagnosis(facts(), "frequent_validation", "", (other, cause), (), (), 1.0)
    assert made.best == cause


def test_a_sample_is_packed_as_all_would_be_and_repeated(tmp_path):
    photos = write_photos(tmp_path / "photos")
    options = {"encode": "raw", "size": [16, 16], "layout": "hwc"}
    repack = Repack("folder", {"train": (photos, "unused")}, options)
    path = str(tmp_path / "sample.h5")
    record_s, _ = try_advice.write_sample(repack, path, 100, 30.0)
    manifest = open_store(path).manifest
    assert manifest.num_records == 5 * 24
    assert manifest.fields["image"].shape == (16, 16, 3)
    assert record_s > 0


def test_a_sample_ends_with_its_time(tmp_path):
    repack = Repack("folder", {"train": (write_photos(tmp_path / "photos"), "unused")})
    path = str(tmp_path / "sample.h5")
    try_advice.write_sample(repack, path, 24, 0.0)
    store = open_store(path)
    keys = store.keys(torch.arange(store.manifest.num_records))
    assert len(keys) == 24
    assert len({key.partition("/")[2] for key in keys}) == 8
