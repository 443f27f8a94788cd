"""``paceline tune`` as its users meet it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from framework.commands.tune.search_reading import recipe_path
from framework.commands.tune.tune import parse
from framework.errors import ConfigError
from tests.cli.command import is_one_error_line, losses, paceline

TINY = ["data=synthetic", "device=cpu"]
WRONG = [
    (["budget=-3"], "C195"),
    (["what=lodaer"], "C195"),
    (["output=nowhere/x.json"], "C195"),
    (["what=batch_size", "memory=lots"], "C195"),
    (["memory=8G"], "C196"),
    (["what=batch_size", "name=x"], "C196"),
    (["parallel=ddp"], "C196"),
    (["resume=there"], "C196"),
    (["name=../x"], "C197"),
    (["--multirun"], "C124"),
    (["loader=prefech"], "C104"),
    (["loader=plain,prefetch"], "C100"),
]


@pytest.mark.parametrize(
    ("words", "number"), WRONG, ids=lambda value: value[-1] if isinstance(value, list) else ""
)
def test_nonsense_is_one_line_before_anything_is_measured(words, number, capsys):
    from framework.main import run

    assert run(["tune", *words]) == 2
    said = capsys.readouterr()
    assert said.err.startswith(f"error[{number}]: ")
    assert len(said.err.splitlines()) == 1
    assert not os.listdir()


def test_own_keys_are_taken_and_the_rest_is_the_runs():
    Path("my").mkdir()
    request = parse(
        [
            "--config-dir",
            "my",
            "recipes=digits",
            "budget=30",
            "name=x",
            "force=true",
            "batch_size=64",
        ]
    )
    assert request.words == ("recipes=digits", "batch_size=64")
    assert (request.budget, request.name, request.force, request.folder) == (30.0, "x", True, "my")
    assert recipe_path(request) == Path("my/recipes/tuned/x.yaml")
    assert parse(["what=batch_size", "memory=500M"]).memory == 500 << 20


def test_a_recipe_is_not_overwritten_unless_asked_nor_made_of_itself():
    Path("recipes/tuned").mkdir(parents=True)
    Path("recipes/tuned/digits.yaml").write_text("# @package _global_\n")
    with pytest.raises(ConfigError, match=r"C197.*force=true"):
        recipe_path(parse([]))
    assert recipe_path(parse(["force=true"])).name == "digits.yaml"
    with pytest.raises(ConfigError, match=r"C197.*itself"):
        recipe_path(parse(["recipes=tuned/digits", "force=true"]))
    for name in ("", ".", "a/b", "a\nb", "ü", "x" * 101):
        with pytest.raises(ConfigError, match="C197"):
            recipe_path(parse([f"name={name}", "recipes=digits"]))


@pytest.mark.slow
def test_a_search_prints_its_grids_and_leaves_a_recipe_that_trains():
    done = paceline("tune", "epochs=1", "budget=5", "name=here", "output=result.json", "device=cpu")
    assert done.code == 0, done.err
    assert "grid 1: all" in done.out
    assert "final: " in done.out
    assert "(as configured)" in done.out
    result = json.loads(Path("result.json").read_text())
    assert len(result["grids"][0]["entries"]) + len(result["grids"][0]["untried"]) == 6
    assert Path(result["recipe"]) == Path("recipes/tuned/here.yaml")
    trained = paceline("train", "--config-dir", ".", "recipes=tuned/here", "hydra.run.dir=run")
    assert trained.code == 0, trained.err
    assert len(losses(Path("run"))) > 0
    again = paceline("tune", "epochs=1", "budget=5", "name=here", "device=cpu")
    assert is_one_error_line(again, "C197")


@pytest.mark.slow
def test_batch_sizes_are_tried_in_memory_that_is_limited():
    few = ["data.source.num_records=60000", "memory=300M"]
    words = ["--config-dir", ".", *TINY, *few, "what=batch_size", "budget=5"]
    done = paceline("tune", *words, "output=curve.json")
    assert done.code == 0, done.err
    result = json.loads(Path("curve.json").read_text())
    assert 8 <= result["recommended"] <= result["largest"] < 60_000
    assert f"recommended: batch_size={result['recommended']}: " in done.out
    assert "paceline train --config-dir . data=synthetic" in done.out
    bound = "fits" if result["bound"] == "memory" else "was tried"
    assert f"the largest that {bound}: {result['largest']}" in done.out
    assert [trial["batch_size"] for trial in result["curve"] if trial["fits"]][-1] == result[
        "largest"
    ]


@pytest.mark.slow
def test_ctrl_c_writes_nothing():
    command = [sys.executable, "-m", "framework", "tune", *TINY, "budget=100"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert "candidates" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=180)
    assert process.returncode == 130
    assert err.strip() == "stopped: nothing was written"
    assert not list(Path().rglob("*.yaml"))
