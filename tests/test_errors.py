import pickle
import re
import runpy

import pytest
from omegaconf import OmegaConf

from framework import errors
from framework.cli.arguments import SHORT
from framework.config.targets import CONF, ROOT

KINDS = errors.PacelineError.__subclasses__()


def test_an_error_is_one_line_that_names_place_fault_and_remedy():
    error = errors.DataError(
        102, "train.h5", "truncated (eof = 96,\n  stored_eof = 2048)", "pack it again"
    )
    assert (
        str(error)
        == "error[D102]: train.h5: truncated (eof = 96, stored_eof = 2048); pack it again"
    )


def test_a_note_is_printed_without_commands_for_the_terminal(capsys):
    errors.say("a\x1b[2J\u202eb\n\tc")
    assert capsys.readouterr().out == "a\\x1b[2J\\u202eb\n\tc\n"


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_survives_pickling(kind):
    error = kind(101, "here", "is wrong", "mend it")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert str(copy) == str(error)


def test_every_kind_has_a_letter_and_an_exit_code_of_its_own():
    codes = [*(kind.exit_code for kind in KINDS), 0, 1]
    codes += [errors.EXIT_PREEMPTED, errors.EXIT_INTERRUPTED]
    assert len(set(codes)) == len(KINDS) + 4
    assert len({kind.letter for kind in KINDS}) == len(KINDS)


def test_documented_exit_codes_do_not_change():
    codes = {kind.__name__: kind.exit_code for kind in KINDS}
    expected = [
        *("ConfigError", "DataError", "CheckpointError", "ResourceError", "NumericError"),
        "DistributedError",
    ]
    assert codes == {**dict(zip(expected, range(2, 8), strict=True)), "UserCodeError": 9}
    assert (errors.EXIT_PREEMPTED, errors.EXIT_INTERRUPTED) == (75, 130)


@pytest.fixture(scope="module")
def tables():
    """Return the program that writes the tables of errors."""
    return runpy.run_path(str(ROOT / "docs" / "errors.py"))


def test_every_kind_of_error_has_a_table(tables):
    assert re.findall(r"^## (\w):", tables["tables"](), re.MULTILINE) == list("CDKRNPU")


# A word such as data=hdf5 in an advice. What stands between <> is known only at runtime.
WORD = re.compile(
    r"(?<![\w./<-])[+~]{0,2}([a-z][\w/]*(?:\.\w+)*)=(\{[^}]*\}|\[[^\]]*\]|[^\s,;)'\"]+)"
)
# Names that an advice explains something with, and arguments of functions.
EXAMPLES = {"a", "drop_last", "key", "label", "num_batches", "predictions", "row_group_size", "x"}


def flat(node, where=""):
    for key, value in node.items() if isinstance(node, dict) else ():
        yield f"{where}{key}"
        yield from flat(value, f"{where}{key}.")


def test_every_word_of_an_advice_is_a_key_or_a_choice(tables):
    keys = {row.where.partition(" = ")[0] for row in tables["rows_of_options"]()}
    choices = {"recipes": {path.stem for path in (ROOT / "recipes").glob("*.yaml")}}
    for path in CONF.rglob("*.yaml"):
        group = path.parent.relative_to(CONF).as_posix().removeprefix(".")
        choices.setdefault(group, set()).add(path.stem)
        prefix = f"{group}." if group else ""
        keys |= {f"{prefix}{key}" for key in flat(OmegaConf.to_container(OmegaConf.load(path)))}
    wrong = []
    for rows in tables["all_rows"]().values():
        for row in rows:
            for key, value in WORD.findall(row.fix):
                is_choice = key in choices and re.fullmatch("[a-z_0-9]+", value)
                if key in EXAMPLES or (key in choices and value.isupper()):
                    continue
                is_key = key in SHORT or any(f"{name}.".startswith(f"{key}.") for name in keys)
                if value not in choices[key] if is_choice else not is_key:
                    wrong.append((row.number, f"{key}={value}"))
    assert not wrong, "\n".join(map(str, wrong))
