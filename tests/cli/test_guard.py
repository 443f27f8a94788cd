import pickle
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode

from framework.cli.guard import MOST_JOBS, GuardedLoader, check_jobs
from framework.cli.hydra_session import hydra_session
from framework.errors import ConfigError
from tests.cli.command import paceline


@pytest.mark.parametrize(
    ("path", "below"),
    [
        ("mine/${now:%Y-%m-%d}/x", True),
        ("runs", True),
        ("outputs/${stamp:}", True),
        ("/tmp/x", False),
        ("a/../../b", False),
        ("${oc.env:HOME}/x", False),
        ("${dataset}", False),
        ("x${now:../..}", False),
    ],
)
def test_a_file_may_send_a_run_below_this_directory_only(path, below):
    Path("recipes").mkdir()
    Path("recipes/mine.yaml").write_text(
        "# @package _global_\ndefaults: [digits]\nmax_steps: 1\n"
        f"hydra: {{run: {{dir: '{path}'}}}}\n"
    )
    done = paceline("train", "--config-dir", ".", "recipes=mine", "data=synthetic")
    assert ("error[C125]: hydra.run.dir: " in done.err) == (not below), done.err


@pytest.mark.parametrize(
    ("words", "fits"),
    [
        (["a=1"], True),
        (["a=range(0,100)", "b=range(0,100)"], True),
        (["a=range(0,101)", "b=range(0,100)"], False),
        (["a=choice(1,2)", f"b=range(0,{MOST_JOBS})"], False),
        (["a=range(0,1,1e-9)"], False),
        (["a=range(0,1,0)"], False),
    ],
)
def test_a_sweep_has_at_most_ten_thousand_jobs(words, fits):
    overrides = OverridesParser.create().parse_overrides(words)
    if fits:
        check_jobs(overrides)
    else:
        with pytest.raises(ConfigError, match="C129"):
            check_jobs(overrides)


def test_a_launchers_process_composes_through_the_guard_too():
    with hydra_session("train") as hydra:
        master = hydra.compose_config("train", ["seed=3"], RunMode.MULTIRUN)
        sent = pickle.loads(pickle.dumps(hydra.config_loader))
        job = sent.load_sweep_config(master, ["optim=adam"])
        assert isinstance(sent, GuardedLoader)
        assert job.optim.lr == 1e-3  # the recipe's own is dropped
        with pytest.raises(ConfigError, match="C125"):
            sent.load_sweep_config(master, ["+hydra.callbacks.a=b"])


def test_a_file_that_makes_a_sweep_is_limited_too():
    Path("recipes").mkdir()
    params = "{sweeper: {params: {seed: 'range(0,20000)'}}}"
    Path("recipes/mine.yaml").write_text(
        f"# @package _global_\ndefaults: [digits]\nhydra: {params}\n"
    )
    words = ["recipes=mine", "hydra.mode=MULTIRUN"]
    with hydra_session("train", ".") as hydra:
        with pytest.raises(ConfigError, match="C129"):
            hydra.compose_config("train", words, RunMode.MULTIRUN)
        typed = [*words, "seed=1,2"]  # replaces the file's
        hydra.compose_config("train", typed, RunMode.MULTIRUN)


@pytest.mark.parametrize("place", ["pkg://evil", "file://{here}/mine", "{here}/mine"])
def test_a_typed_search_path_is_read_with_checks(place):
    here = Path.cwd()
    Path("evil").mkdir()
    Path("evil/__init__.py").write_text("open('ran', 'w').close()\n")
    Path("mine/model").mkdir(parents=True)
    Path("mine/model/own.yaml").write_text("width: !!python/name:os.system\n")
    word = f"hydra.searchpath=['{place.format(here=here)}']"
    with hydra_session("train") as hydra, pytest.raises(ConfigError, match=r"C125|C115"):
        hydra.compose_config("train", [word, "model=own"], RunMode.RUN)
    assert not Path("ran").exists()
