"""Small runs for the tests of what uses them."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from framework.config.targets import ROOT
from framework.media.decode import encode_png
from framework.store.open_store import open_store
from framework.system.run_dir import SUMMARY, read_json, write_object
from tests.cli.command import paceline

EXAMPLES = "allow_targets=[paceline_examples]"


def digits_run(folder: Path, *words: str, name: str = "run") -> Path:
    """Train the digits for two epochs in ``folder/name``, from stores in ``folder/digits``."""
    place = (f"hydra.run.dir={name}", "dataset=digits", "epochs=2", "workers.num=0")
    done = paceline("train", "recipes=digits", *place, *words, cwd=folder)
    assert done.code == 0, done.err
    return folder / name


def summary_of(run: Path) -> dict:
    return read_json(run / SUMMARY)


def write_signed(path: Path, text: str) -> None:
    """Write a text that may be no JSON. An object is signed as its writer does."""
    path.write_text(text)
    with suppress(ValueError, RecursionError):
        if isinstance(value := json.loads(text), dict):
            write_object(path, value, redact=False)


def change(path: Path, **values: Any) -> None:
    """Change values of an object of a run, and sign it as its writer does."""
    write_object(path, {**read_json(path), **values}, redact=False)


def digit_files(folder: Path, count: int) -> None:
    """Write the first validation digits as PNGs, every third in a folder of its own."""
    store = open_store(str(folder / "digits" / "val.h5"))
    images = store.read(torch.arange(count))["image"].numpy()
    store.close()
    for number, image in enumerate(images):
        path = folder / "photos" / ("sub" if number % 3 == 0 else "") / f"{number:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode_png(image))


def scenes_run(folder: Path, recipe: str) -> Path:
    """Train ``segment`` or ``detect`` for two steps on a few drawn scenes."""
    words = [
        *("--config-dir", str(ROOT / "examples"), f"recipes={recipe}", EXAMPLES, "max_steps=2"),
        *("workers.num=0", f"dataset={recipe}"),
    ]
    words += [f"hydra.run.dir={recipe}_run", "batch_size=4"]
    few = ("prepare.train.input.items=8", "prepare.val.input.items=10")
    done = paceline("train", *words, *few, cwd=folder)
    assert done.code == 0, done.err
    return folder / f"{recipe}_run"
