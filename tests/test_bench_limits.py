"""The limits of planted set-ups: they hold, and nothing of them is left behind."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from framework.measure.disk_kind import disk_kind

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(autouse=True)
def planted(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setenv("PYTHONPATH", str(BENCHMARKS), prepend=":")
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "planted"]:
        del sys.modules[name]


@pytest.fixture
def limits():
    from planted import limits

    return limits


@pytest.fixture
def slow_files():
    from planted import slow_files

    if slow_files.no_mount():
        pytest.skip(slow_files.no_mount())
    return slow_files


def test_a_command_runs_with_the_limits_of_its_group(limits, tmp_path):
    if limits.no_groups():
        pytest.skip(limits.no_groups())
    code = "from framework.measure.cgroup import Cgroups; print(Cgroups().cores())"
    with limits.quota(0.5)(tmp_path) as prefix:
        groups = prefix[1].removeprefix("GROUPS_OF_IT=").split()
        done = subprocess.run(
            [*prefix, sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
    assert float(done.stdout) == 0.5
    assert not any(Path(group).exists() for group in groups)


def test_a_slow_view_of_a_folder_has_its_bytes_and_answers_late(slow_files, tmp_path):
    source = tmp_path / "source" / "inside"
    source.mkdir(parents=True)
    (source / "a.bin").write_bytes(bytes(range(256)) * 400)
    place = tmp_path / "place"
    with slow_files.mounted(source.parent, place, 50):
        start = time.monotonic()
        assert (place / "inside" / "a.bin").read_bytes() == bytes(range(256)) * 400
        assert time.monotonic() - start >= 0.05
        assert [path.name for path in place.iterdir()] == ["inside"]
        assert not (place / "none").exists()
        assert disk_kind(str(place)) == "network"
    assert not list(place.iterdir())
