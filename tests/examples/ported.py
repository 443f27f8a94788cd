"""Projects of others in ``examples/ports``: copied, imported, and run as their loops do."""

import importlib
import shutil
import sys
from pathlib import Path

from tests.cli.command import Done, losses, paceline

PORTS = Path(__file__).parents[2] / "examples" / "ports"
ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # another number adds in another order


def copied(folder):
    """Copy the projects to ``folder``, which may exist, and return it."""
    ignored = shutil.ignore_patterns("__pycache__")
    return shutil.copytree(PORTS, folder, dirs_exist_ok=True, ignore=ignored)


def imported(name, folder=PORTS):
    sys.path.insert(0, str(folder))
    module = importlib.import_module(name)
    sys.path.remove(str(folder))
    return module


def words_of(recipe, allowed):
    """Return the words that train a recipe of ``folder`` from ``start.pth``."""
    start = ("train", "--config-dir", ".", f"recipes={recipe}", allowed, "init=start.pth")
    return (*start, "workers.num=0", "device=cpu", "report_every=1")


def run(folder, *words) -> Done:
    done = paceline(*words, cwd=folder, **ONE_THREAD)
    assert done.code == 0, done.err
    return done


def check_resumed(folder, words, steps, allowed):
    """Check that a run that is stopped after ``steps`` and resumed learns the same bits."""
    run(folder, *words, "hydra.run.dir=whole")
    run(folder, *words, "hydra.run.dir=parts", f"max_steps={steps}")
    run(folder, "train", "resume=parts", "max_steps=null", allowed)
    assert losses(folder / "parts") == losses(folder / "whole")
    parts, whole = (folder / name / "checkpoints" / "last.pt" for name in ("parts", "whole"))
    assert parts.read_bytes() == whole.read_bytes()
