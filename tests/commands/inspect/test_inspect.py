import json
import subprocess
import sys
from pathlib import Path

import cv2
import pytest

from tests.cli.command import is_one_error_line, paceline
from tests.conftest import make_records, write_store


def test_inspect_prints_the_manifest_and_draws_a_grid():
    assert paceline("pack", "input=digits", "output.path=d.h5").code == 0
    done = paceline("inspect", "d.h5", "grid=grid.png")
    assert done.code == 0
    for words in (
        "1,437 records",
        "schema 6",
        "field image: raw uint8 1x8x8, 64 bytes a record",
        "class 3: 3  135 records",
    ):
        assert words in done.out
    grid = cv2.imread("grid.png")
    assert grid.shape == (576, 576, 3)  # 36 tiles of 96 pixels
    assert grid.std() > 10


@pytest.mark.parametrize("word", ["--json", "json=true"])
def test_inspect_prints_one_json_object(word):
    store = write_store("x.h5", make_records(6))
    done = paceline("inspect", store, word)
    assert done.code == 0, done.err
    facts = json.loads(done.out)
    assert (facts["path"], facts["num_records"], facts["classes"]) == ("x.h5", 6, ["a", "b", "c"])
    assert Path(facts["grid"]).exists()


def test_inspect_takes_one_word_for_the_store():
    assert is_one_error_line(paceline("inspect"), "C103")
    assert is_one_error_line(paceline("inspect", "nowhere=x"), "C102")
    assert is_one_error_line(paceline("inspect", "a.h5", "b.h5"), "C100")
    assert is_one_error_line(paceline("inspect", "a.h5", "store=b.h5"), "C100")


def test_a_reader_that_goes_early_is_no_error():
    assert paceline("pack", "input=digits", "output.path=d.h5").code == 0
    words = f"set -o pipefail; {sys.executable} -m framework inspect d.h5 | head -1"
    done = subprocess.run(
        ["bash", "-c", words], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode in (0, 141)  # 0 where everything was written before the reader went
    assert done.stderr == ""
