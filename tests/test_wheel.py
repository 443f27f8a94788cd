"""An installed wheel is complete: it works in an empty directory, without the repository."""

import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from framework.cli.paths import ROOT


@pytest.mark.slow
def test_an_installed_wheel_trains_inspects_and_edits_in_an_empty_directory(tmp_path):
    if not (ROOT / "pyproject.toml").exists():
        pytest.skip("the tests run from an installed package, not from a checkout")
    source = tmp_path / "source"
    shutil.copytree(
        ROOT,
        source,
        ignore=shutil.ignore_patterns(
            ".git", ".venv*", "outputs", "__pycache__", ".*cache*", "*.so"
        ),
    )
    build = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        tmp_path / "dist",
        source,
    ]
    subprocess.run(build, check=True, capture_output=True, timeout=120)
    wheel = next((tmp_path / "dist").glob("*.whl"))
    names = zipfile.ZipFile(wheel).namelist()
    assert {
        "framework/conf/train.yaml",
        "framework/recipes/digits.yaml",
        "framework/py.typed",
    } <= set(names)
    assert ("framework/system/native/_native.so" in names) == ("-py3-none-any" not in wheel.name)

    home = tmp_path / "venv"
    venv.create(home, with_pip=True)
    # the dependencies are those of this environment: installing torch again would take minutes
    here = next(path for path in sys.path if path.endswith("site-packages"))
    there = next((home / "lib").glob("*/site-packages"))
    python = home / "bin" / "python"
    subprocess.run(
        [python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", wheel],
        check=True,
        timeout=120,
    )
    (there / "dependencies.pth").write_text(here + "\n")

    empty = tmp_path / "empty"
    empty.mkdir()
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    store = "outputs/data/digits/val.h5"
    for words in (
        ["train", "recipes=digits", "epochs=2", "hydra.run.dir=run"],
        ["inspect", store],
        ["pack", "input=store", f"input.path={store}", "output.path=again.h5"],
    ):
        done = subprocess.run(
            [home / "bin" / "paceline", *words],
            cwd=empty,
            env=clean,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    assert json.loads((empty / "run" / "summary.json").read_text())["status"] == "finished"
    where = subprocess.run(
        [python, "-c", "import framework; print(framework.__file__)"],
        cwd=empty,
        env=clean,
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(where.stdout.strip()).is_relative_to(there)
