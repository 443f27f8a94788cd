"""Small runs for the tests of what uses them."""

import json
from pathlib import Path

from tests.cli.command import paceline


def digits_run(folder: Path, *words: str, name: str = "run") -> Path:
    """Train the digits for two epochs in ``folder/name``, from stores in ``folder/digits``."""
    place = (
        "recipes=digits",
        f"hydra.run.dir={name}",
        "dataset=digits",
        "epochs=2",
        "workers.num=0",
    )
    done = paceline("train", *place, *words, cwd=folder)
    assert done.code == 0, done.err
    return folder / name


def summary_of(run: Path) -> dict:
    return json.loads((run / "summary.json").read_text())
