import shlex

from framework.commands.diagnose.diagnosis import Applied, Diagnosis
from framework.commands.diagnose.print_diagnosis import (
    advice_lines,
    as_json,
    fact_lines,
    part_rows,
    show,
    show_applied,
)
from framework.commands.diagnose.verdict import Repack, Verdict
from framework.measure.statistics import Pairs
from tests.commands.diagnose.cases import SLOWED, facts

ADVICE = Verdict("raise_workers", "no workers", "decoding", 1.5, ("workers.num=4",))
FAILED = Verdict("processes", "s", "w", 1.2, ("workers.kind=process",), failed="no memory")
FOUND = Diagnosis(facts(), "raise_workers", "Data limits.", (ADVICE,), (FAILED,), 30.0)


def changed(words):
    return ["epochs=3", *words]


def test_the_limit_comes_first_and_each_advice_has_its_command(capsys):
    show(FOUND, changed, "my folder")
    out = capsys.readouterr().out
    assert out.startswith("Data limits.\n")
    assert "1. raise_workers: 1.50 times" in out
    assert "paceline train --config-dir 'my folder' epochs=3 workers.num=4" in out
    assert "processes (no memory)" in out


def test_advice_about_a_store_packs_it_first():
    verdict = Verdict("r", "s", "w", 1.5, repack=Repack("folder", "photos", "packed"))
    lines = [line.strip() for line in advice_lines(1, verdict, changed, [])]
    commands = [shlex.split(line) for line in lines if line.startswith("paceline ")]
    assert [command[1] for command in commands] == ["pack", "train"]
    assert "output.path=packed.h5" in commands[0]


def test_every_part_has_a_row_and_one_that_was_not_measured_says_so():
    rows = part_rows(facts(rates={"other": None, "copy": None, "read": None}))
    by_name = {name: row for name, *row in rows}
    assert "computing 32 records a step" not in by_name
    assert by_name["reading the store"] == ["-", "", "not measured"]
    assert by_name["computing"][1] == "64.00"  # ms a step of 64 records at 1,000 records/s


def test_a_step_that_reading_slows_has_a_row_of_its_own():
    by_name = {name: row for name, *row in part_rows(facts(rates=SLOWED))}
    row = by_name["  the same while data is read"]
    assert row == ["500", "128.00", "forward, backward, optimizer: 100 % longer"]
    assert "  the same while data is read" not in [name for name, *_ in part_rows(facts())]


def test_the_machine_and_the_store_are_described():
    machine, store = fact_lines(facts())
    assert "4 cores" in machine
    assert "photos" in store
    assert "300 x 400" in store


def test_what_was_applied_stands_beside_what_was_predicted(capsys):
    comparison = Pairs((100.0, 100.0, 100.0), (140.0, 140.0, 140.0))
    show_applied(Applied(ADVICE, comparison, "on a sample"))
    out = capsys.readouterr().out
    assert "on a sample" in out
    assert "predicted 1.50" in out
    assert "measured 1.40" in out


def test_the_json_has_the_command_and_the_headroom():
    plain = as_json(FOUND, ["seconds=1"])
    assert plain["command"] == ["paceline", "diagnose", "seconds=1"]
    assert plain["facts"]["headroom"] == FOUND.facts.headroom
    assert plain["verdicts"][0]["rule"] == "raise_workers"
