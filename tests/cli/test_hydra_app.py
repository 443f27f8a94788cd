from pathlib import Path

import pytest
from omegaconf import OmegaConf

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


@pytest.mark.parametrize("words", [["recipes=sweep_loader"], ["hydra.mode=MULTIRUN", "seed=1,2"]])
def test_a_sweep_that_one_of_several_ranks_would_run_is_refused(monkeypatch, words):
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(ConfigError, match="C122"):
        run_app("train", words, lambda config: pytest.fail("a job has begun"))
    assert not Path("outputs").exists()
