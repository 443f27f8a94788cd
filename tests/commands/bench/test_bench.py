import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from framework.commands.bench.bench import combinations, main, parse, two_sides
from framework.errors import ConfigError
from framework.system.stopping import children_of, command_of
from tests.cli.command import paceline

SHORT = ("repeats=1", "seconds=0.1", "burn_in=0")


@pytest.mark.slow
def test_a_grid_is_measured_and_what_cannot_run_has_its_reason():
    done = paceline("bench", "data=hdf5,hdf6", "model.in_channels=1,3", *SHORT, "output=a.jsonl")
    assert done.code == 0, done.err
    header, *lines = map(json.loads, Path("a.jsonl").read_text().splitlines())
    assert header["bench"] == 1
    assert header["machine"]["num_cores"] >= 1
    assert header["cells"][0] == {"data": "hdf5", "model.in_channels": "1"}
    reasons = [line["illegal"][:11] for line in lines if "illegal" in line]
    assert reasons == ["error[C104]", "error[C104]", "error[C155]"]
    assert [(line["cell"], len(line["windows"])) for line in lines if "windows" in line] == [
        (header["cells"][0], 8)
    ]
    assert os.path.exists("outputs/data/digits/train.h5")
    assert "1.00x" in done.out
    assert "data=hdf6 model.in_channels=1: error[C104]" in done.out
    about, *numbered = done.err.splitlines()[-3:]
    assert about.startswith("2 combinations, 1 repeat each: about 0:00:0")
    assert [line[:5] for line in numbered] == ["1/2  ", "2/2  "]
    assert done.out.endswith("\nlines: a.jsonl\na page of them: paceline report a.jsonl\n")


def cells_of(pid: int) -> list[int]:
    """Return the children of a process that are measurements."""
    name = b"framework.trials.measure_setting"
    return [child for child in children_of(pid) if name in command_of(child)]


@pytest.mark.slow
def test_ctrl_c_keeps_what_was_measured_and_leaves_no_process():
    short = ["repeats=50", "seconds=0.1", "burn_in=0", "output=a.jsonl"]
    words = ["bench", "data=synthetic", "what=loader", *short]
    command = [sys.executable, "-m", "framework", *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as run:
        while (
            not Path("a.jsonl").exists()
            or len(Path("a.jsonl").read_text().splitlines()) < 2
            or not (cells := cells_of(run.pid))
        ):
            assert run.poll() is None
            time.sleep(0.05)
        run.send_signal(signal.SIGINT)
        _, err = run.communicate(timeout=180)
    assert run.returncode == 130
    assert err.splitlines()[-1] == "stopped: the lines so far are in a.jsonl"
    assert not any(os.path.exists(f"/proc/{cell}") for cell in cells)


def write_bench(path: str, rates: list[float], **changes) -> None:
    cell = {"data": "hdf5"}
    header = {"bench": 1, "cells": [cell], "machine": {}, "versions": {}, "what": "train"}
    lines = [
        {"cell": cell, "repeat": repeat, "records_per_s": rate, "spans_s": {}}
        for repeat, rate in enumerate(rates)
    ]
    header = {**header, "overrides": [], **changes}
    Path(path).write_text("".join(json.dumps(line) + "\n" for line in [header, *lines]))


def test_a_slower_file_fails_the_gate_and_the_same_one_passes():
    write_bench("a.jsonl", [100.0, 101.0, 99.0, 100.5, 99.5])
    write_bench("b.jsonl", [90.0, 91.0, 89.0, 90.5, 89.5], overrides=["workers.num=0"])
    slower = paceline("bench", "compare=[a.jsonl,b.jsonl]")
    assert slower.code == 1
    assert "-10.0%" in slower.out
    assert "slower" in slower.out
    assert "note: measured differently: overrides was empty, is workers.num=0" in slower.out


def test_noise_that_hides_the_threshold_is_reported(capsys):
    write_bench("a.jsonl", [100.0, 101.0, 99.0, 100.5, 99.5])
    write_bench("b.jsonl", [100.0, 80.0, 120.0, 90.0, 110.0])
    assert main(["compare=a.jsonl", "b.jsonl"]) == 0
    assert "1 of 1 spread by up to 10% and would hide" in capsys.readouterr().out


WRONG = [
    *((["what=lader"], "C185"), (["repeats=0"], "C185"), (["threshold=0.1"], "C186")),
    *((["compare=[a,b]", "repeats=3"], "C186"), (["-m", "data=hdf5,lmdb"], "C186")),
    *((["optim.lr=interval(0,1)"], "C186"), (["hydra.run.dir=x"], "C186")),
    *((["compare=[a,b]"], "C187"), (["data=hdf6,hdf7"], "C104"), (["data"], "C100")),
    (["--multirn"], "C124"),
]


@pytest.mark.parametrize(
    ("words", "number"), WRONG, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_a_wrong_command_is_refused_and_leaves_nothing(words, number):
    with pytest.raises(ConfigError, match=rf"error\[{number}\]"):
        main(words)
    assert not os.listdir()


def test_the_commands_own_keys_are_taken_from_the_words():
    mine = ["what=loader", "repeats=3", "seconds=0.5", "output='a b.jsonl'"]
    own, words = parse(["data=hdf5,lmdb", *mine, "seed=1,2"])
    assert (own.what, own.repeats, own.seconds, own.output) == ("loader", 3, 0.5, "a b.jsonl")
    assert words.others == ["data=hdf5,lmdb", "seed=1,2"]


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        *(("[a-1.jsonl,/b/c.jsonl]", []), ("a-1.jsonl,/b/c.jsonl", [])),
        *(("a-1.jsonl", ["/b/c.jsonl"]), ('["a-1.jsonl",/b/c.jsonl]', [])),
    ],
)
def test_two_files_may_be_named_in_three_ways(text, rest):
    assert two_sides(text, rest) == ("a-1.jsonl", "/b/c.jsonl")


def test_the_last_key_changes_fastest_and_nothing_comes_twice():
    choices = combinations({"data": ["hdf5", "lmdb", "hdf5"], "loader": ["plain", "stream"]})
    values = [tuple(choice.values()) for choice in choices]
    assert values[:2] == [("hdf5", "plain"), ("hdf5", "stream")]
    assert values[2:] == [("lmdb", "plain"), ("lmdb", "stream")]
