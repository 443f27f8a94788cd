"""``paceline plan`` as its users meet it."""

import json
from pathlib import Path

import pytest

from framework.commands.plan.plan import parse_plan
from tests.cli.command import is_one_error_line, paceline


def test_a_finished_run_gives_a_forecast():
    words = ["epochs=2", "report_every=3", "hydra.run.dir=run", "sink=[jsonl]", "batch_size=128"]
    assert paceline("train", *words).code == 0
    done = paceline("plan", "run=run", "disk=100M/s", "output=plan.json")
    assert done.code == 0, done.err
    assert "computing sets the pace" in done.out
    result = json.loads(Path("plan.json").read_text())
    assert result["forecast"]["steps"] == 12
    assert result["forecast"]["epochs"] == 2
    two = paceline("plan", "run=run", "hosts=2", "network=10G")
    assert two.code == 0, two.err
    assert "sent by a host" in two.out
    refused = paceline("plan", "run=run", "hosts=2")
    assert is_one_error_line(refused, "C398")
    assert "iperf3" in refused.err


@pytest.mark.slow
def test_a_configuration_is_measured_and_forecast():
    done = paceline("plan", "batch_size=64", "cores=1", "seconds=3", "output=plan.json")
    assert done.code == 0, done.err
    assert "forecast for 1 host x 1 rank, 1 core a host" in done.out
    result = json.loads(Path("plan.json").read_text())
    assert result["measured"][0]["cores_per_rank"] == 1
    assert not list(Path().glob("outputs/2*"))


@pytest.mark.parametrize(
    ("words", "number"),
    [
        (["host=2"], "C102"),
        (["hostz"], "C399"),
        (["seconds=0"], "C399"),
        (["memory=lots"], "C399"),
        (["output=no/such/place.json"], "C399"),
        (["run=x", "epochs=3"], "C399"),
        (["run=nowhere"], "K120"),
        (["cores=100000"], "C398"),
        (["gpu=H100"], "C398"),
    ],
)
def test_what_cannot_be_is_one_line(words, number):
    done = paceline("plan", *words)
    assert is_one_error_line(done, number), done.err


def test_our_own_keys_are_taken_from_the_words():
    asked = parse_plan(["hosts=2", "batch_size=64", "network=10G", "seconds=5"])
    assert asked.words == ["batch_size=64"]
    assert asked.hosts == {"hosts": "2", "network": "10G"}
    assert asked.seconds == 5.0


def test_help_names_the_keys():
    done = paceline("plan", "--help")
    assert done.code == 0
    assert all(key in done.out for key in ("ranks_per_host", "network", "cluster", "run: null"))
