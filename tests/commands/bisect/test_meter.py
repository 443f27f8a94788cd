"""Settings measured in processes of their environments."""

import json
import shutil
import sys
from contextlib import closing
from pathlib import Path

import pytest

import framework
from framework.commands.bisect.meter import Environment, MeasuredSetting, Meter, Refused
from framework.config.saved_config import read_config
from framework.errors import ConfigError, ResourceError
from tests.commands.bisect.sleeping_runs import sleeping_run, write_model

ROOT = Path(framework.__file__).parent


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("meter")
    write_model(folder)
    config, _ = read_config(sleeping_run(folder, "run"))
    config["data"]["train"] = str(folder / config["data"]["train"])
    return config


@pytest.mark.slow
def test_a_setting_is_measured_and_another_in_the_same_process(config, tmp_path):
    write_model(tmp_path)
    slow = {**config, "model": {**config["model"], "pause_ms": 200}}
    with closing(Meter(["sleepy_model."], 0.1)) as meter:
        rates = [meter.rate(MeasuredSetting(own, Environment())) for own in (config, slow)]
        assert rates[0] > rates[1]
        assert meter.versions(Environment())["python"] == sys.version.split()[0]
        lost = {**config, "data": {**config["data"], "train": "none.h5"}}
        with pytest.raises(Refused, match="D101"):
            meter.rate(MeasuredSetting(lost, Environment()))


@pytest.mark.slow
def test_a_tree_comes_before_the_present_directory(config, tmp_path):
    write_model(tmp_path)
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "sleepy_model.py").write_text("raise RuntimeError('of the tree')")
    with (
        closing(Meter(["sleepy_model."], 0.1)) as meter,
        pytest.raises(Refused, match="of the tree"),
    ):
        meter.rate(MeasuredSetting(config, Environment(tree=str(tree))))


def test_an_interpreter_that_cannot_measure_is_an_error(tmp_path):
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho 'no module named framework' >&2\nexit 3\n")
    script.chmod(0o755)
    with closing(Meter([], 0.1)) as meter:
        with pytest.raises(ConfigError, match=r"C348.*exit code 3: no module named framework"):
            meter.versions(Environment(str(script)))
        with pytest.raises(ConfigError, match=r"C348.*cannot be started"):
            meter.versions(Environment(str(tmp_path / "none")))


@pytest.fixture
def lost(tmp_path):
    """Write an interpreter whose process ends at its first measurement, and return its path."""
    script = tmp_path / "python"
    answer = json.dumps({"versions": {}})
    script.write_text(f"#!/bin/sh\nread line\necho '{answer}'\nread line\nexit 9\n")
    script.chmod(0o755)
    return str(script)


def test_a_process_that_is_lost_is_an_error(lost):
    with closing(Meter([], 0.1)) as meter, pytest.raises(ResourceError, match=r"R340.*exit code 9"):
        meter.rate(MeasuredSetting({}, Environment(lost)))


def test_a_commit_whose_process_is_lost_does_not_run_and_is_started_anew(lost):
    setting = MeasuredSetting({}, Environment(lost, tree="commit"))
    with closing(Meter([], 0.1)) as meter:
        for _ in range(2):
            with pytest.raises(Refused, match=r"R340.*exit code 9"):
                meter.rate(setting)


@pytest.mark.parametrize("module", ["system/stopping.py", "commands/probe.py"])
def test_a_commit_with_a_faulty_module_does_not_run(tmp_path, module):
    tree = tmp_path / "tree"
    shutil.copytree(ROOT, tree / "framework", ignore=shutil.ignore_patterns("__pycache__"))
    (tree / "framework" / module).write_text("raise RuntimeError('a faulty commit')")
    setting = MeasuredSetting({}, Environment(tree=str(tree)))
    with closing(Meter([], 0.1)) as meter, pytest.raises(Refused, match="a faulty commit"):
        meter.rate(setting)
