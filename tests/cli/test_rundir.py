import json
from pathlib import Path

import pytest
from omegaconf import OmegaConf

import framework.cli.rundir
from framework.cli.rundir import claim, discard_if_empty, in_use
from framework.errors import ConfigError, ResourceError

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


def test_a_resumed_run_keeps_the_files_of_its_start():
    take()
    before = Path("run/run.json").read_text()
    take(resumed="run")
    assert Path("run/run.json").read_text() == before
    assert Path("run/config.1.yaml").is_file()
    assert Path("run/resolved.1.json").is_file()


def test_one_process_trains_in_a_directory(monkeypatch):
    monkeypatch.setattr(framework.cli.rundir, "PATIENCE_S", 0.0)
    Path("run").mkdir()
    with in_use(Path("run")), pytest.raises(ResourceError, match="R108"), in_use(Path("run")):
        pass


def test_only_empty_directories_below_outputs_are_removed():
    for path in ("outputs/day/run", "mine/run", "outputs/full/run"):
        Path(path).mkdir(parents=True)
    Path("outputs/full/run/kept").touch()
    for path in ("outputs/day/run", "mine/run", "outputs/full/run"):
        discard_if_empty(Path(path))
    assert not Path("outputs/day").exists()
    assert Path("mine").is_dir()
    assert Path("outputs/full/run/kept").is_file()
