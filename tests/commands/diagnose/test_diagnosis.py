from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import pytest

from framework.commands.diagnose import diagnosis
from framework.commands.diagnose.diagnosis import (
    Diagnosis,
    apply,
    cause_of,
    diagnose,
    limit_of,
)
from framework.commands.diagnose.rules import verdicts_of
from framework.commands.diagnose.run_facts import RunFacts
from framework.commands.diagnose.verdict import Verdict
from framework.errors import ResourceError
from tests.commands.diagnose.cases import FINE, facts
from tests.commands.diagnose.setting import compose_of, setting
from tests.commands.diagnose.test_record_rules import BLOCK, LIMITED
from tests.conftest import make_records, write_store

SMALL = ["model.width=4", "batch_size=8"]


def silent(_):
    pass


@pytest.mark.parametrize(
    ("changes", "first"),
    [
        ({"settings": {"workers": 0, "loader": "plain"}}, "raise_workers"),
        ({"rates": {"prepare_two": 310.0}, "settings": {"has_function": True}}, "processes"),
        (
            {
                "storage": {"image_size": (3000, 4000)},
                "settings": {"workers": 4, "transform": "resize", "size": (64, 64)},
            },
            "repack_smaller",
        ),
        (
            {
                "storage": {
                    "form": "hdf5",
                    "encoding": "raw",
                    "image_size": None,
                    "chunk_records": 256,
                },
                "settings": {"workers": 4},
            },
            "repack_contiguous",
        ),
        ({"rates": FINE}, "data_is_fine"),
        (
            {"rates": FINE, "settings": {"workers": 64}, "machine": {"num_cores": 2}},
            "lower_workers",
        ),
    ],
)
def test_the_planted_cause_comes_first(changes, first):
    assert verdicts_of(facts(**changes))[0].rule == first


def test_the_limit_names_its_cause():
    slow = facts(settings={"workers": 0, "loader": "plain"})
    cause = cause_of(slow, verdicts_of(slow), [])
    assert limit_of(slow, cause).startswith(
        "Data limits training: waiting for data takes 75 % of a step (computing 25 %). "
        "Without it, training would be up to 4.0 times as fast. No workers"
    )
    fine = facts(rates=FINE)
    assert limit_of(fine, cause_of(fine, [], [])).startswith(
        "Computing limits training: computing takes 99 % of a step. "
        "Data is not your problem: at most 1 % to win"
    )


WAIT = {"parts": ("wait",)}
COMPUTE = {"parts": ("forward", "backward", "optimizer", "compute")}


def test_the_cause_is_that_of_the_largest_part():
    slow = facts(settings={"workers": 0, "loader": "plain"})
    fine = facts(rates=FINE)
    compute = [Verdict("larger_batch", "l", "w", 2.0, tried=True, **COMPUTE)]
    assert cause_of(slow, compute, []) is None
    assert cause_of(fine, compute, []).rule == "larger_batch"
    untried = [Verdict("larger_batch", "l", "w", 2.0, modeled=2.0, **COMPUTE)]
    assert cause_of(fine, [], untried).rule == "larger_batch"


@pytest.mark.slow
def test_a_diagnosis_measures_judges_and_tries(tmp_path):
    path = write_store(str(tmp_path / "a.h5"), make_records(400))
    words = [*SMALL, f"data.train={path}", "workers.kind=process", "workers.num=6", "loader=plain"]
    result = diagnose(compose_of(*words), 20.0, silent)
    judged = {v.rule: v for v in (*result.verdicts, *result.rejected)}
    assert "lower_workers" in judged
    assert any(verdict.tried for verdict in judged.values())
    assert result.limit.endswith(".")
    assert all(verdict.modeled >= 1 for verdict in judged.values())
    assert result.facts.syncs == ()


def test_applying_a_repack_writes_the_store_to_its_target(tmp_path):
    path = write_store(str(tmp_path / "a.h5"), make_records(80))
    compose = compose_of(*SMALL, f"data.train={path}")
    result = diagnose(compose, 0.5, silent)
    from framework.commands.diagnose.verdict import Repack

    advice = Verdict("r", "s", "w", 1.0, (), Repack("store", path, str(tmp_path / "b"), "lmdb"))
    applied = apply(replace(result, verdicts=(advice,)), compose, 0.5, silent).applied
    assert (tmp_path / "b.lmdb").exists()
    assert "b.lmdb" in applied.note


def test_a_trial_reads_records_that_no_trial_before_it_has_read(epochs_read):
    run_setting = setting("data=synthetic", "data.source.num_records=100000", "batch_size=8")
    diagnosis._training_rate(run_setting, 0.1, 0.0, 1)
    diagnosis._training_rate(run_setting, 0.1, 0.0, 2)
    epochs = [epoch for epoch in epochs_read if epoch]  # settings look at the first
    assert epochs == sorted(set(epochs))
    assert min(epochs) > 100


@pytest.mark.parametrize(("gain", "cause"), [(1.4, "decode_jpeg"), (1.5, "slow_records")])
def test_a_few_slow_records_are_the_cause_if_most_of_a_step_waits_for_them(gain, cause):
    slow = facts(settings={"workers": 0, "loader": "plain"})
    decoding = Verdict("decode_jpeg", "d", "w", 4.0, tried=True, modeled=4.0, **WAIT)
    records = Verdict("slow_records", "s", "w", gain, modeled=gain, **WAIT)
    assert cause_of(slow, [decoding, records], []).rule == cause


def test_advice_that_was_tried_and_lost_is_no_advice_and_no_cause():
    slow = facts(settings={"workers": 0, "loader": "plain"})
    lost = Verdict("processes", "p", "w", 0.22, ("a=1",), tried=True, modeled=3.0, **WAIT)
    assert cause_of(slow, [], [lost]) is None
    diagnosed = diagnosis.Diagnosis(slow, "processes", "limit", (), (lost,), 1.0)
    assert diagnosed.best is None
    assert replace(diagnosed, rejected=(replace(lost, gain=1.01),)).best is not None


def test_trials_end_with_the_time(monkeypatch):
    slow = facts(settings={"workers": 0, "loader": "plain"})
    monkeypatch.setattr(diagnosis, "gather_facts", lambda *_: slow)
    said = []
    result = diagnose(compose_of("data=synthetic", "batch_size=8"), 1e-3, said.append)
    assert not any(verdict.tried for verdict in (*result.verdicts, *result.rejected))
    assert said == []


def trials(monkeypatch, known, rate):
    """Diagnose known facts. Return the verdicts by rule, and what was tried.

    ``rate`` returns the rate of the words that advice adds.
    """
    tried = []

    def measured(changed, *_):
        tried.append(tuple(changed.words))
        return rate(str(changed.words))

    monkeypatch.setattr(diagnosis, "gather_facts", lambda *_: known)
    monkeypatch.setattr(diagnosis, "_training_rate", measured)
    monkeypatch.setattr(diagnosis, "_run_rate", measured)
    result = diagnose(Changed, 40.0, silent)
    return {v.rule: v for v in (*result.verdicts, *result.rejected)}, tried


class Changed(NamedTuple):
    """What advice changes of a setting, in place of it."""

    words: Sequence[str]
    threads: int | None = None


STEPS = {**FINE, "whole": 1000.0, "compute": 1000.0}


@pytest.mark.parametrize(("save_s", "gain", "tried"), [(0.01, 3.0, True), (2.0, None, False)])
def test_what_a_run_does_often_is_tried_in_short_runs(monkeypatch, save_s, gain, tried):
    run = RunFacts(1000, save_s=save_s, save_every={"checkpoint.every_steps": 1.0})
    known = facts(rates=STEPS, on_run=run)
    verdicts, _ = trials(
        monkeypatch, known, lambda words: 300.0 if "every_steps" in words else 100.0
    )
    saving = verdicts["frequent_saving"]
    assert saving.tried == tried
    assert saving.gain == (gain or saving.modeled)


def test_slow_records_are_tried_without_them(monkeypatch):
    known = facts(slow_records={**BLOCK, "num_slow": 3}, rates=LIMITED)
    verdicts, _ = trials(
        monkeypatch, known, lambda words: 250.0 if "record not in [7]" in words else 100.0
    )
    assert verdicts["slow_records"].gain == 2.5
    assert verdicts["slow_records"].tried


def test_the_first_trial_of_the_best_advice_counts_beside_the_longer_ones(monkeypatch):
    rates = iter([100.0, 200.0, 100.0, *([100.0, 400.0, 400.0, 100.0] * 2)])
    known = facts(settings={"workers": 0, "loader": "plain"})
    monkeypatch.setattr(diagnosis, "NUM_TRIALS", 1)
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
    monkeypatch.setattr(diagnosis, "verdicts_of", lambda _: [better, other])
    _, tried = trials(monkeypatch, facts(), lambda words: rate if "a=1" in words else 100.0)
    assert len({words for words in tried if words}) == num_tried


@pytest.mark.parametrize("words", [{"overrides": ("a=1",)}, {"trial": ("a=1",)}])
def test_a_trial_that_ends_with_an_error_fails_only_the_advice(monkeypatch, words):
    advice = Verdict("a", "s", "w", 2.0, **words, action="act", modeled=2.0, parts=("wait",))
    monkeypatch.setattr(diagnosis, "verdicts_of", lambda _: [advice])

    def rate(words):
        if words != "()":
            raise ResourceError(104, "memory", "used up", "free memory")
        return 100.0

    verdicts, _ = trials(monkeypatch, facts(), rate)
    assert ("R104" in verdicts["a"].failed) == ("overrides" in words)
    assert (verdicts["a"].gain, verdicts["a"].tried) == (2.0, False)


def test_rejected_advice_says_why_it_could_not_be_tried(monkeypatch):
    slow = facts(settings={"workers": 0, "loader": "plain"})
    monkeypatch.setattr(diagnosis, "gather_facts", lambda *_: slow)
    present = setting("data=synthetic", "batch_size=8")

    def compose(changes):
        if changes:
            raise ResourceError(104, "memory", "used up", "free memory")
        return present

    result = diagnose(compose, 0.5, silent)
    assert "R104" in next(v for v in result.rejected if v.rule == "raise_workers").failed


def test_advice_against_the_cause_is_applied_before_larger_gains():
    other = Verdict("other_programs", "", "", 5.0, action="end them")
    cause = Verdict("frequent_validation", "", "", 3.0, ("validate_every=100",))
    made = Diagnosis(facts(), "frequent_validation", "", (other, cause), (), (), 1.0)
    assert made.best == cause
