import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from framework.commands.tune.search_reading import recipe_path
from framework.commands.tune.tune import BatchSizeSearch, Trial, parse, print_curve
from framework.errors import ConfigError
from tests.cli.command import is_one_error_line, losses, paceline

TINY = ["data=synthetic", "device=cpu"]
WRONG = [
    *((["budget=-3"], "C195"), (["what=lodaer"], "C195"), (["output=nowhere/x.json"], "C195")),
    *((["what=batch_size", "memory=lots"], "C195"), (["memory=8G"], "C196")),
    *((["what=batch_size", "name=x"], "C196"), (["parallel=ddp"], "C196")),
    *((["resume=there"], "C196"), (["name=../x"], "C197"), (["--multirun"], "C124")),
    *((["loader=prefech"], "C104"), (["loader=plain,prefetch"], "C100")),
]


@pytest.mark.parametrize(
    ("words", "number"), WRONG, ids=lambda value: value[-1] if isinstance(value, list) else ""
)
def test_a_wrong_command_is_refused_before_anything_is_measured(words, number, capsys):
    from framework.main import run

    assert run(["tune", *words]) == 2
    said = capsys.readouterr()
    assert said.err.startswith(f"error[{number}]: ")
    assert len(said.err.splitlines()) == 1
    assert not os.listdir()


def test_own_keys_are_taken_and_the_rest_is_the_runs():
    Path("my").mkdir()
    words = ["recipes=digits", "budget=30", "name=x", "force=true", "batch_size=64"]
    request = parse(["--config-dir", "my", *words])
    assert request.words == ("recipes=digits", "batch_size=64")
    assert (request.budget, request.name) == (30.0, "x")
    assert (request.force, request.config_dir) == (True, "my")
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
    assert [row["batch_size"] for row in result["curve"] if row["fits"]][-1] == result["largest"]


@pytest.mark.slow
def test_ctrl_c_writes_nothing():
    command = [sys.executable, "-m", "framework", "tune", *TINY, "budget=100"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:
        assert "candidates" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=180)
    assert process.returncode == 130
    assert err.strip() == "stopped: nothing was written"
    assert not list(Path().rglob("*.yaml"))


class Machine:
    """A machine that fits batches up to ``fits``; a step takes ``fixed_s + record_s * size``."""

    def __init__(self, fits: int, fixed_s: float = 0.01, record_s: float = 1e-4, breaks=()):
        self.fits, self.fixed_s, self.record_s, self.breaks = fits, fixed_s, record_s, breaks
        self.now, self.asked = 0.0, []

    def clock(self) -> float:
        return self.now

    def attempt(self, size: int, seconds: float, limit_s: float) -> Trial:
        self.asked.append(size)
        step_s = self.fixed_s + size * self.record_s
        self.now += min(limit_s, max(seconds, 3 * step_s))
        if size > self.fits:
            return Trial(size, why="out of memory", memory=True)
        if size in self.breaks:
            return Trial(size, why="ValueError: more than 1 value per channel")
        if 3 * step_s > limit_s:
            return Trial(size, why="steps take too long", late=True)
        return Trial(size, (size / step_s,) * 4, step_s, size * 1000)

    def search(self, most: int = 100_000, step: int = 1, budget_s: float = 60.0) -> BatchSizeSearch:
        sizes = BatchSizeSearch(self.attempt, most, step, budget_s, self.clock)
        for _ in sizes.run():
            pass
        return sizes


@pytest.mark.parametrize("fits", [8, 9, 100, 511, 512, 700, 5000])
def test_the_largest_that_fits_is_found_to_a_sixteenth(fits):
    curve = Machine(fits, fixed_s=0.1, record_s=1e-6).search()
    assert curve.bound == "memory"
    assert curve.fitting[-1].batch_size <= fits <= curve.fitting[-1].batch_size * (1 + 1 / 16) + 1


def test_steps_too_long_for_the_budget_end_the_doubling():
    machine = Machine(10**9, record_s=0.01)
    curve = machine.search(budget_s=20.0)
    assert curve.bound == "time"
    assert machine.now < 60.0


def test_the_recommended_is_the_smallest_near_the_best_rate():
    curve = Machine(10**9, fixed_s=0.01, record_s=1e-4).search(most=16384)
    best = max(trial.records_per_s for trial in curve.fitting)
    smaller = [trial for trial in curve.fitting if trial.batch_size < curve.recommended.batch_size]
    assert curve.recommended.records_per_s >= 0.97 * best
    assert smaller
    assert all(trial.records_per_s < 0.97 * best for trial in smaller)


def test_rates_are_measured_again_the_largest_first():
    machine = Machine(100)
    curve = machine.search()
    sizes = [trial.batch_size for trial in curve.fitting]
    assert machine.asked[-len(sizes) :] == sizes[::-1]
    assert all(len(trial.rates) == 8 for trial in curve.fitting)


def test_a_size_that_no_longer_fits_is_removed():
    machine = Machine(100)
    sizes = BatchSizeSearch(machine.attempt, 1000, 1, 60.0, machine.clock)
    for trial in sizes.run():
        if trial.batch_size == 100:
            machine.fits = 90
    assert sizes.fitting[-1].batch_size <= 90


def test_the_curve_ends_with_the_command_that_follows_it(capsys):
    search = Machine(16).search(most=32)
    assert search.bound == "memory"
    sizes = {"rank_batch_size": None, "batch_size": 8}
    typed = ["--config-dir", "my dir", "batch_size=8", "epochs=3"]
    plain = print_curve(search, typed, sizes, False)
    assert "paceline train --config-dir 'my dir' epochs=3 batch_size=16" in capsys.readouterr().out
    assert (plain["recommended"], plain["largest"], plain["bound"]) == (16, 16, "memory")
    fits = [(trial["batch_size"], trial["fits"]) for trial in plain["curve"]]
    assert fits[:2] == [(8, True), (16, True)]
    assert not any(fit for _, fit in fits[2:])
