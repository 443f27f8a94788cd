import pickle
import runpy

import pytest

from framework import errors
from framework.cli.paths import ROOT
from framework.errors import DataError, PacelineError

KINDS = PacelineError.__subclasses__()


def test_an_error_is_one_line_that_names_place_fault_and_remedy():
    error = DataError(
        102, "train.h5", "truncated (eof = 96,\n  stored_eof = 2048)", "pack it again"
    )
    assert (
        str(error)
        == "error[D102]: train.h5: truncated (eof = 96, stored_eof = 2048); pack it again"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_survives_pickling(kind):
    error = kind(101, "here", "is wrong", "mend it")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert str(copy) == str(error)


def test_every_kind_has_a_letter_and_an_exit_code_of_its_own():
    codes = [kind.exit_code for kind in KINDS] + [
        errors.EXIT_PREEMPTED,
        errors.EXIT_INTERRUPTED,
        0,
        1,
    ]
    assert len(set(codes)) == len(KINDS) + 4
    assert len({kind.letter for kind in KINDS}) == len(KINDS)


def test_documented_exit_codes_do_not_change():
    codes = {kind.__name__: kind.exit_code for kind in KINDS}
    expected = [
        "ConfigError",
        "DataError",
        "CheckpointError",
        "ResourceError",
        "NumericError",
        "DistributedError",
    ]
    assert codes == {**dict(zip(expected, range(2, 8), strict=True)), "UserCodeError": 9}
    assert (errors.EXIT_PREEMPTED, errors.EXIT_INTERRUPTED) == (75, 130)


def test_the_page_of_errors_lists_what_the_code_raises():
    page = runpy.run_path(str(ROOT / "docs" / "errors.py"))["page"]()
    written = (ROOT / "docs" / "errors.md").read_text()
    assert page == written, "docs/errors.md is out of date: run '.venv/bin/python docs/errors.py'"
