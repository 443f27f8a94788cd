import os

import pytest

from framework.sink.config_files import inside, read_config
from tests.saved_runs import write_signed


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ('{"a": {"b": 1, "c": [1, "x"]}, "d": null}', {"a.b": "1", "a.c": '[1, "x"]', "d": "null"}),
        ("{", {}),
        ("[" * 100_000, {}),
    ],
)
def test_a_configuration_is_read_by_dotted_names(tmp_path, text, values):
    write_signed(tmp_path / "resolved.json", text)
    assert read_config(tmp_path / "resolved.json") == values


def test_only_files_of_the_run_directory_are_sent(tmp_path):
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / "a.pt").write_text("weights")
    (tmp_path / "secret").write_text("key")
    os.symlink(tmp_path / "secret", run_dir / "link")
    assert inside(run_dir, "a.pt") == run_dir / "a.pt"
    for name in ("../secret", str(tmp_path / "secret"), "link", "missing", ".", "a\0b", 7):
        assert inside(run_dir, name) is None
