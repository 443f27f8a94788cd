"""Files and words that no one writes by hand are refused soon and in one line.

Nothing is made of them before.
"""

import re
import sys
from pathlib import Path

import pytest

from framework.cli.yaml_limits import MOST_NODES
from tests.faults.forked import is_one_line, paceline

LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]\n" for level in range(1, 10)
)
TEXTS = "a0: xxxxxxxxxx\n" + "".join(
    f"a{level}: {f'${{a{level - 1}}}' * 10}\n" for level in range(1, 10)
)
INNER = "{" + ", ".join(f"k{number}: '${{LEVEL}}'" for number in range(10)) + "}"
NODES = "a0: {x: 1}\n" + "".join(
    f"a{level}: {INNER.replace('LEVEL', f'a{level - 1}')}\n" for level in range(1, 10)
)
FILES = {
    "large": (b"# " + bytes(10_000_000), "C114", "65,536 bytes"),
    "many": ("source: [" + "1," * (MOST_NODES + 1) + "]", "C114", "10,000 values"),
    "laughs": (LAUGHS, "C114", "10,000 values"),
    "deep": ("source: " + "[" * 30_000, "C114", "40 deep"),
    "twice": ("epochs: 1\nepochs: 2", "C115", "line 3: .*duplicate key epochs"),
    "tab": ("model:\n\twidth: 1", "C115", "line 3"),
    "nul": ("epochs: 1\0", "C115", "control characters"),
    "mark": (b"\xef\xbb\xbf# @package _global_\n", "C115", "byte-order mark"),
    "utf16": ("epochs: 1".encode("utf-16"), "C115", "byte-order mark"),
    "latin1": (b"source: \xff\n", "C115", "UTF-8"),
    "object": ("source: !!python/object/apply:os.system ['touch canary']", "C115", "line 2: a tag"),
    "path": ("source: !!python/object/apply:pathlib.Path ['x']", "C115", "a tag"),
    "set": ("source: !!set {a, b}", "C115", "a tag"),
    "circle": ("source: &a [*a]", "C115", r"\*a stands for"),
    "stranger": ("source: *x", "C115", r"\*x stands for"),
    "documents": ("epochs: 1\n---\nepochs: 2", "C115", "another document"),
    "variable": ("source: ${oc.env:NO_SUCH_VARIABLE}", "C104", "NO_SUCH_VARIABLE"),
    "resolver": ("source: ${sh:ls}", "C104", "resolver|interpolation type sh"),
    "turning": ("source: ${dataset}\ndataset: ${source}", "C104", "Recursive"),
    "texts": (TEXTS, "C104", "1,000 references"),
    "nodes": (NODES, "C104", "1,000 references"),
    "itself": ("defaults: [itself]", "C117", "recipes/itself: lists of defaults that lead back"),
    "nothing": ("hydra: null", "C100", "."),
    "jobs": (
        "hydra: {mode: MULTIRUN, sweeper: {params: {seed: 'range(0,1000000000)'}}}",
        "C129",
        "1,000,000,000 jobs",
    ),
}


def recipe(name, text):
    Path("recipes").mkdir(exist_ok=True)
    whole = text if isinstance(text, bytes) else f"# @package _global_\n{text}".encode()
    Path(f"recipes/{name}.yaml").write_bytes(whole)


def loads_torch():
    """Make every later import of torch an error."""
    for name in [
        name for name in sys.modules if name.split(".")[0] == "torch" or name == "framework.run"
    ]:
        sys.modules[name] = None  # type: ignore[assignment]


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_nobody_writes_is_refused_at_once(name):
    text, number, words = FILES[name]
    recipe(name, text)
    done = paceline("train", "--config-dir", ".", f"recipes={name}", before=loads_torch, limit_s=60)
    assert is_one_line(done, number, 2)
    assert re.search(words, done.err)
    assert (
        sorted(path.name for path in Path().iterdir()) == ["outputs", "recipes"]
        or not Path("outputs").exists()
    )


@pytest.mark.parametrize("name", ["laughs", "itself", "deep"])
def test_it_is_refused_wherever_it_comes_from(name):
    text, number, _ = FILES[name]
    recipe(name, text)
    for words in (["bench", "what=loader"], ["diagnose"], ["tune"]):
        assert is_one_line(
            paceline(*words, "--config-dir", ".", f"recipes={name}", limit_s=60), number, 2
        )
    Path("input").mkdir()
    Path(f"recipes/{name}.yaml").rename(f"input/{name}.yaml")
    done = paceline("pack", "--config-dir", ".", f"input={name}", "output.path=x.h5", limit_s=60)
    assert done.code == 2
    assert "Traceback" not in done.err


def test_two_files_that_lead_to_each_other_are_both_named():
    recipe("one", "defaults: [two]")
    recipe("two", "defaults: [one]")
    done = paceline("train", "--config-dir", ".", "recipes=one")
    assert is_one_line(done, "C117", 2, "recipes/one", "recipes/two")


def test_a_choice_does_not_lead_out_of_its_folders():
    recipe("out", "defaults:\n  - ../../outside")
    Path("mine").mkdir()
    Path("recipes").rename("mine/recipes")
    Path("outside.yaml").write_text("epochs: 1\n")
    for words in (["recipes=out"], ["recipes=../../outside"], ["+../outside@_global_=x"]):
        done = paceline("train", "--config-dir", "mine", *words)
        assert done.code == 2
        assert "Traceback" not in done.err
        assert done.err.count("error[C") == 1


def test_hydras_way_to_rerun_a_pickle_is_no_option_of_ours():
    for word in ("--experimental-rerun=x.pickle", "--experimental-rerun", "--experimental"):
        assert is_one_line(paceline("train", word, "x.pickle"), "C124", 2)
