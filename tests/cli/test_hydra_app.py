from pathlib import Path

import pytest
from omegaconf import OmegaConf

from framework.cli.guard import GuardedLoader
from framework.cli.hydra_app import resolved, run_app
from framework.errors import ConfigError


@pytest.mark.parametrize(
    ("config", "number", "words"),
    [
        ({"a": "???", "b": {"c": "???"}}, 103, "a, b.c: must be given; add a=... b.c=..."),
        ({"a": "${nothing}"}, 104, "a: Interpolation key 'nothing' not found"),
    ],
)
def test_a_value_that_is_missing_or_leads_nowhere_is_named(config, number, words):
    with pytest.raises(ConfigError) as caught:
        resolved(OmegaConf.create(config))
    assert f"C{number}" in str(caught.value)
    assert words in str(caught.value)


def test_the_first_bad_exit_code_of_a_sweep_is_returned(capsys):
    codes = iter([0, 7, 3])
    words = ["-m", "seed=1,2,3", "hydra.sweep.dir=sweep"]
    assert run_app("train", words, lambda config: next(codes)) == 7
    assert next(codes, None) is None


def test_an_unknown_option_names_the_nearest():
    with pytest.raises(ConfigError, match=r"C124.*did you mean '--multirun'"):
        run_app("train", ["--multirn"], lambda config: 0)


@pytest.fixture
def compositions(monkeypatch):
    """Return a list of the modes for which a configuration was composed, in order."""
    modes = []
    load = GuardedLoader.load_configuration

    def loaded(self, config_name, overrides, run_mode, *options, **more):
        modes.append(run_mode.name)
        return load(self, config_name, overrides, run_mode, *options, **more)

    monkeypatch.setattr(GuardedLoader, "load_configuration", loaded)
    return modes


def test_the_configuration_of_a_run_is_composed_once(compositions):
    assert run_app("train", ["hydra.run.dir=run"], lambda config: 0) == 0
    assert compositions == ["RUN"]


@pytest.mark.parametrize(
    ("typed", "num_jobs"), [([], 6), pytest.param(["seed=1,2"], 12, marks=pytest.mark.slow)]
)
def test_a_recipe_that_asks_for_a_sweep_gets_it_without_an_option(typed, num_jobs):
    seeds = []
    words = ["recipes=sweep_loader", "hydra.sweep.dir=sweep", *typed]
    assert run_app("train", words, lambda config: seeds.append(config.seed) or 0) == 0
    assert len(seeds) == num_jobs


@pytest.mark.parametrize("words", [["recipes=sweep_loader"], ["hydra.mode=MULTIRUN", "seed=1,2"]])
def test_a_sweep_that_one_of_several_ranks_would_run_is_refused(monkeypatch, words):
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(ConfigError, match="C122"):
        run_app("train", words, lambda config: pytest.fail("a job has begun"))
    assert not Path("outputs").exists()
