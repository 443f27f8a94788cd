"""The README holds in a bare environment: a wheel, its dependencies, and nothing else."""

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import cv2
import numpy as np
import pytest

from framework.config.targets import ROOT
from tests.test_docs import blocks_of, runs

README = ROOT / "README.md"
LEFT_OUT = shutil.ignore_patterns(".git", ".venv*", "outputs", "__pycache__", ".*cache*", "*.so")
FURTHER = (
    "paceline train",
    "paceline report outputs",
    "paceline diagnose recipes=photos source=photos loader=plain workers.num=0 seconds=3",
)


def made_wheel(folder: Path) -> Path:
    """Build a wheel of a copy of the checkout, without what it has compiled."""
    shutil.copytree(ROOT, folder / "source", ignore=LEFT_OUT)
    words = ["-m", "build", "--wheel", "--no-isolation", "--outdir", folder, folder / "source"]
    subprocess.run([sys.executable, *words], check=True, capture_output=True, timeout=120)
    return next(folder.glob("*.whl"))


def installed(folder: Path, *words: str | Path) -> None:
    """Install packages, or skip the test if no index can be reached."""
    pip = [folder / "bin" / "python", "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt"]
    done = subprocess.run([*pip, *words], capture_output=True, text=True, check=False, timeout=280)
    if done.returncode:
        pytest.skip(f"no package index can be reached: {done.stderr.strip().splitlines()[-1]}")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_command_of_the_readme_runs_in_a_bare_environment(tmp_path):
    wheel = made_wheel(tmp_path)
    names = zipfile.ZipFile(wheel).namelist()
    assert {"framework/conf/train.yaml", "framework/input/digits.npz"} <= set(names)
    own = {name for name in names if name.startswith("paceline/")}
    assert own == {f"paceline/{name}" for name in ("__init__.py", "__init__.pyi", "py.typed")}
    assert ("framework/system/native/_native.so" in names) == ("-py3-none-any" not in wheel.name)
    home = tmp_path / "venv"
    venv.create(home, with_pip=True)
    installed(home, wheel)
    images = np.random.default_rng(0).integers(0, 256, (24, 72, 96, 3), np.uint8)
    for number, image in enumerate(images):
        path = tmp_path / "empty" / "photos" / ("cat", "dog")[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(path), image)
    environment = {
        "PATH": f"{home / 'bin'}{os.pathsep}/usr/bin{os.pathsep}/bin",
        "HOME": str(tmp_path),
        "OMP_NUM_THREADS": "1",
    }
    codes = [block.code for block in blocks_of(README) if runs(block)]
    for code in [*codes, *FURTHER]:
        if code.startswith("paceline report"):  # with the packages that the README names
            assert "`pip install matplotlib jinja2`" in README.read_text()
            installed(home, "matplotlib", "jinja2")
        options = {"cwd": tmp_path / "empty", "env": environment, "timeout": 280}
        pipes = {"capture_output": True, "text": True}
        done = subprocess.run(["bash", "-ec", code], check=False, **options, **pipes)
        assert done.returncode == 0, f"{code}\n{done.stdout}{done.stderr}"
