"""Configuration files: their places, and which are refused before Hydra reads them."""

import inspect
import re
from hashlib import sha256
from pathlib import Path

import pytest
from hydra.core.object_type import ObjectType
from omegaconf import OmegaConf
from omegaconf.errors import InterpolationResolutionError

from framework.cli import hydra_session
from framework.errors import ConfigError
from tests.cli.command import config_of, is_one_error_line, paceline, refusal_of

LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]\n" for level in range(1, 10)
)


@pytest.mark.parametrize(
    ("text", "number", "words"),
    [
        pytest.param("#" * (hydra_session.MOST_BYTES + 1), "C114", "65,536 bytes", id="large"),
        pytest.param(LAUGHS, "C115", r"line 2: an alias, \*a0", id="laughs"),
        pytest.param("a: &a [*a]", "C115", r"an alias, \*a", id="circle"),
        pytest.param("a: *x", "C115", "alias", id="stranger"),
        pytest.param("a: " + "[" * 30_000, "C115", "not YAML that can be read", id="deep"),
        pytest.param("model:\n\twidth: 1", "C115", "line 2", id="tab"),
        pytest.param("a: 1\0", "C115", "control characters", id="nul"),
        pytest.param("a: 1".encode("utf-16"), "C115", "can't decode", id="utf-16"),
        pytest.param(b"a: \xff\n", "C115", "can't decode", id="latin-1"),
        pytest.param("\na: !!python/object/apply:os.system [x]", "C115", "python/obj", id="tag"),
        pytest.param("a: !!set {a, b}", "C115", "set", id="set"),
    ],
)
def test_a_file_that_nobody_writes_by_hand_is_refused(source, text, number, words):
    Path("mine/x.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError, match=f"{number}.*({words})"):
        source.load_config("x")


@pytest.fixture
def source():
    """Return the source of a folder with one recipe."""
    Path("mine/recipes").mkdir(parents=True)
    Path("mine/recipes/a.yaml").write_text("# @package _global_\nepochs: 3\n")
    return hydra_session.CheckedFolder("a test", f"paceline://{Path('mine').absolute()}")


def test_a_file_is_read_with_its_header(source):
    result = source.load_config("recipes/a")
    assert result.config == {"epochs": 3}
    assert result.header["package"] == "_global_"


def test_groups_and_files_are_listed(source):
    assert source.available()
    assert source.is_group("recipes")
    assert source.is_config("recipes/a")
    assert not source.is_config("recipes")
    assert source.list("", ObjectType.GROUP) == ["recipes"]
    assert source.list("recipes", ObjectType.CONFIG) == ["a"]


def recipe(name, text):
    Path("mine/recipes").mkdir(parents=True, exist_ok=True)
    Path(f"mine/recipes/{name}.yaml").write_text(f"# @package _global_\n{text}")


def test_recipes_are_found_in_the_users_folder():
    recipe("own", "defaults: [digits]\nepochs: 77\n")
    assert config_of("recipes=own", config_dir="mine")["epochs"] == 77


TEXTS = "a0: xxxxxxxxxx\n" + "".join(f"a{n}: {f'${{a{n - 1}}}' * 10}\n" for n in range(1, 10))


@pytest.mark.parametrize(
    ("text", "number", "words"),
    [
        pytest.param("epochs: 1\nepochs: 2", "C115", "line 3: .*duplicate key epochs", id="twice"),
        pytest.param("epochs: 1\n---\nepochs: 2", "C115", "another document", id="documents"),
        pytest.param("source: ${oc.env:NO_SUCH}", "C104", "NO_SUCH", id="variable"),
        pytest.param("source: ${sh:ls}", "C104", "resolver|interpolation type sh", id="resolver"),
        pytest.param("source: ${dataset}\ndataset: ${source}", "C104", "Recursive", id="circle"),
        pytest.param(TEXTS, "C104", "1,000 references", id="texts"),
        pytest.param("defaults: [x]", "C117", "recipes/x: lists of defaults", id="itself"),
        pytest.param("hydra: null", "C100", "correct the words, or the files", id="no hydra"),
    ],
)
def test_a_recipe_that_cannot_be_composed_is_refused(text, number, words):
    recipe("x", text)
    line = refusal_of("recipes=x", config_dir="mine")
    assert line.startswith(f"error[{number}]: ")
    assert re.search(words, line)


def test_a_choice_of_pack_is_checked_like_a_recipe():
    Path("mine/input").mkdir(parents=True)
    Path("mine/input/laughs.yaml").write_text(LAUGHS)
    done = paceline("pack", "--config-dir", "mine", "input=laughs", "output.path=x.h5")
    assert is_one_error_line(done, "C115")


def test_two_recipes_that_lead_to_each_other_are_both_named():
    recipe("one", "defaults: [two]")
    recipe("two", "defaults: [one]")
    line = refusal_of("recipes=one", config_dir="mine")
    assert line.startswith("error[C117]: ")
    assert "recipes/one" in line
    assert "recipes/two" in line


@pytest.mark.parametrize("word", ["recipes=out", "recipes=../../outside", "+../outside@_global_=x"])
def test_a_choice_does_not_lead_out_of_its_folders(word):
    recipe("out", "defaults:\n  - ../../outside")
    Path("outside.yaml").write_text("epochs: 1\n")
    assert refusal_of(word, config_dir="mine").startswith("error[C")


# sha256 of the source of Container.resolve_parse_tree in OmegaConf 2.3 and 2.4.
KNOWN = (
    "cfec8e7464e2603b42a94ebc78f9ba6adf8357a3e12b225cf3d5c7dd33cf61f6",
    "5a695dc6c08194f25917388267c1bd4c26361576c4031f6d44530efc33c3eb83",
)


@pytest.fixture
def limited():
    hydra_session._reset_reference_counts()


def test_the_method_of_omegaconf_that_is_replaced_is_the_known_one():
    """If this fails, read the method's new source: docs/design/0012-guard.md."""
    assert sha256(inspect.getsource(hydra_session.RESOLVE).encode()).hexdigest() in KNOWN


BLOCK = "{" + ", ".join(f"k{number}: '${{a0}}'" for number in range(10)) + "}"


@pytest.mark.parametrize(
    ("first", "inner"),
    [("''", "'" + "${oc.select:a0}" * 10 + "'"), ("{x: 1}", BLOCK)],
    ids=["texts", "blocks"],
)
def test_references_that_multiply_are_refused(limited, first, inner):
    levels = [f"a{level}: {inner.replace('a0', f'a{level - 1}')}" for level in range(1, 9)]
    config = OmegaConf.create("\n".join([f"a0: {first}", *levels]))
    with pytest.raises(InterpolationResolutionError, match=r"(1,000 references|20,000 blocks)"):
        OmegaConf.to_container(config, resolve=True)


def test_references_are_counted_for_each_configuration():
    config = OmegaConf.create({"a": "x", **{f"b{number}": "${a}" for number in range(600)}})
    assert hydra_session.MOST["references"] < 1200
    for _ in range(2):
        hydra_session._reset_reference_counts()
        OmegaConf.to_container(config, resolve=True)


def test_a_name_with_two_dots_leads_to_no_file_though_it_may_lie_in_our_folder(source):
    Path("mine/recipes/b.yaml").write_text("epochs: 4\n")
    assert source.is_config("recipes/b")
    assert not source.is_config("recipes/../recipes/b")
    with pytest.raises(ConfigError, match="C117"):
        source.load_config("recipes/../recipes/b")
