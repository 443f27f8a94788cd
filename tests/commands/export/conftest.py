"""A run of the digits, trained once for all tests of export."""

import pytest

from framework.config.saved_run import ALONE, open_run
from tests.saved_runs import digits_run


@pytest.fixture(scope="session")
def run_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("export")
    store = str(folder / "digits")
    return digits_run(folder, f"dataset={store}", "sink=[jsonl]")


@pytest.fixture
def run(run_dir):
    run = open_run(run_dir, (), "best", {"parallel": ALONE, "device": "cpu"})
    yield run
    run.close()
