import json
import pickle
import sys

import torch

from framework.errors import DataError, UserCodeError, UserRecordError, error_kinds
from framework.system.user_code import user_error


def caught(call):
    try:
        call()
    except BaseException as error:  # noqa: BLE001
        return error
    raise AssertionError


def fails():
    raise LookupError("a  user's\nmistake")


def test_an_error_of_the_user_names_file_line_and_function():
    line = fails.__code__.co_firstlineno + 1
    text = str(user_error(caught(fails), about="record 5", fix="mend it"))
    assert text.startswith("error[U100]: ")
    assert text.endswith(
        f"test_user_code.py:{line}: in fails: LookupError: a user's mistake (record 5); mend it"
    )


def test_what_a_library_raises_belongs_to_the_user_who_called_it():
    error = user_error(caught(lambda: torch.zeros(2, 3) @ torch.zeros(2, 3)))
    assert "test_user_code.py" in str(error)
    assert "json" not in str(user_error(caught(lambda: json.loads("{"))))


def test_the_cause_is_named_if_the_error_itself_was_made_by_a_library():
    error = RuntimeError("generator raised")
    error.__cause__ = caught(fails)
    assert "in fails: LookupError: a user's mistake" in str(user_error(error))


def test_a_file_that_cannot_be_parsed_is_named_with_its_line(tmp_path):
    (tmp_path / "broken.py").write_text("x = 1\ndef (:\n")
    sys.path.append(str(tmp_path))
    try:
        error = caught(lambda: __import__("broken"))
    finally:
        sys.path.remove(str(tmp_path))
    assert "broken.py:2: SyntaxError: " in str(user_error(error))


def test_an_error_of_a_record_can_be_skipped_and_sent():
    error = user_error(caught(fails), kind=UserRecordError)
    assert isinstance(error, DataError | UserCodeError)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.exit_code, type(again)) == (str(error), 9, UserRecordError)
    assert error_kinds()["UserRecordError"] is UserRecordError
