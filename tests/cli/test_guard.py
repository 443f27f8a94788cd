from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from framework.cli.guard import MOST_JOBS, check_jobs
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
        f"# @package _global_\ndefaults: [digits]\nmax_steps: 1\nhydra: {{run: {{dir: '{path}'}}}}\n"
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
