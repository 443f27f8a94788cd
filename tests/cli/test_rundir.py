import json
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from framework.cli.rundir import claim, discard_if_empty, in_use
from framework.errors import ConfigError

CONFIG = {"epochs": 1, "resume": {"run": None}}


def take(resumed=None):
    run_dir = Path("run")
    run_dir.mkdir(exist_ok=True)
    plain = {**CONFIG, "resume": {"run": resumed}}
    claim(run_dir, OmegaConf.create(CONFIG), plain, ["epochs=1"], None)


def test_a_claimed_directory_holds_what_the_run_was_started_with():
    take()
    assert json.loads(Path("run/resolved.json").read_text()) == CONFIG
    assert json.loads(Path("run/run.json").read_text())["overrides"] == ["epochs=1"]
    assert Path("run/config.yaml").is_file()


def test_a_directory_holds_one_run():
    take()
    with pytest.raises(ConfigError, match="C121"):
        take()


def failed(**ending):
    """Claim a run directory, and write ``ending`` as the end of its run."""
    take()
    ending = {"code": 3, "reason": "error", "step": None, "checkpoint": None} | ending
    Path("run/exit.json").write_text(json.dumps(ending))


def test_a_directory_of_a_run_that_failed_before_its_first_step_is_free_again():
    failed()
    Path("run/debug.log").touch()
    with in_use(Path("run")):
        take()
        assert Path("run/run.lock").exists()
    names = sorted(path.name for path in Path("run").iterdir())
    assert names == ["config.yaml", "resolved.json", "run.json"]


@pytest.mark.parametrize("ending", [{"code": 0}, {"step": 3}, {"checkpoint": "step-3.pt"}])
def test_a_directory_of_a_run_that_trained_is_not_free(ending):
    failed(**ending)
    with pytest.raises(ConfigError, match="C121"):
        take()


@pytest.mark.parametrize("name", ["metrics.jsonl", "checkpoints", "notes.txt"])
def test_a_directory_with_results_or_files_of_the_user_is_not_free(name):
    failed()
    Path("run", name).touch()
    with pytest.raises(ConfigError, match="C121"):
        take()
    assert Path("run", name).exists()


def test_a_resumed_run_keeps_the_files_of_its_start():
    take()
    before = Path("run/run.json").read_text()
    take(resumed="run")
    assert Path("run/run.json").read_text() == before
    assert Path("run/config.1.yaml").is_file()
    assert Path("run/resolved.1.json").is_file()


def test_only_empty_directories_below_outputs_are_removed():
    for path in ("outputs/day/run", "mine/run", "outputs/full/run"):
        Path(path).mkdir(parents=True)
    Path("outputs/full/run/kept").touch()
    for path in ("outputs/day/run", "mine/run", "outputs/full/run"):
        discard_if_empty(Path(path))
    assert not Path("outputs/day").exists()
    assert Path("mine").is_dir()
    assert Path("outputs/full/run/kept").is_file()
