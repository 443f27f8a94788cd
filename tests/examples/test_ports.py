"""Four projects of others train, predict and export with the commands of docs/ports.md."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.cli.command import losses, paceline
from tests.examples.ported import ONE_THREAD, PORTS, copied, imported

FLOWERS = {"aster": 80, "iris": 40, "lily": 24, "rose": 16}


@pytest.fixture(autouse=True)
def project():
    """Copy the files of the projects into the test's own directory."""
    copied(".")


def run(*words: str, **environment: str) -> str:
    done = paceline(*words, **environment)
    assert done.code == 0, done.err
    return done.out + done.err


def write_flowers() -> None:
    """Write images whose color says their class."""
    rng = np.random.default_rng(0)
    for number, (name, count) in enumerate(FLOWERS.items()):
        Path("flowers", name).mkdir(parents=True)
        for index in range(count):
            pixels = rng.integers(0, 120, (32, 32, 3), np.uint8)
            pixels[..., number % 3] += 60 + 60 * (number // 3)
            Image.fromarray(pixels).save(f"flowers/{name}/{index}.png")


def write_weights() -> None:
    """Write weights as another program saves them: wrapped, with the names of DataParallel."""
    net = imported("rosettes").RosetteNet
    torch.manual_seed(0)
    state = {f"module.{name}": value for name, value in net().state_dict().items()}
    torch.save({"epoch": 3, "state_dict": state}, "rosettes.pth")


@pytest.mark.slow
def test_a_classifier_is_tuned_evaluated_used_and_exported():
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra onnx")
    write_flowers()
    write_weights()
    allowed = "allow_targets=[rosettes]"
    split = ("pack.split={train: 0.8, val: 0.2}", "pack.split_by=stratified")
    pack = ("input=folder", "input.path=flowers", "output.path=flowers.h5", "pack.encode=raw")
    run("pack", *pack, *split)
    tuned = ("--config-dir", ".", "recipes=rosettes", "init=rosettes.pth", "hydra.run.dir=tuned")
    text = run("train", *tuned, allowed)
    assert "new: fc.weight, fc.bias (4 classes instead of 10)" in text or "new: fc" in text
    best = json.loads(Path("tuned/summary.json").read_text())["best"]
    assert best["macro_f1"] > 0.8
    run("evaluate", "run=tuned", "output=evaluated", allowed)
    evaluation = json.loads(Path("evaluated/evaluation.json").read_text())
    assert best["macro_f1"] in _numbers(evaluation)
    files = ("input=folder", "input.path=flowers", "output=predictions.csv")
    run("predict", "run=tuned", *files, allowed)
    with open("predictions.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == sum(FLOWERS.values())
    run("export", "run=tuned", "to=onnx", "output=flowers.onnx", "preprocess=true", allowed)
    session = onnxruntime.InferenceSession("flowers.onnx")
    name = session.get_inputs()[0].name
    image = np.asarray(Image.open("flowers/rose/0.png")).transpose(2, 0, 1)[None]
    assert session.run(None, {name: image})[0].shape == (1, 4)


def _numbers(node: object) -> list[object]:
    """Return every value in nested dicts and lists."""
    if isinstance(node, dict):
        return [number for value in node.values() for number in _numbers(value)]
    if isinstance(node, list):
        return [number for value in node for number in _numbers(value)]
    return [node]


def write_cells() -> None:
    """Write images of bright disks, the masks that mark the disks, and a list of both."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:32, :32]
    Path("cells").mkdir()
    rows: list[Sequence[str]] = [("image", "mask")]
    for index in range(60):
        top, left = rng.integers(8, 24, 2)
        disk = (y - top) ** 2 + (x - left) ** 2 < 30
        pixels = rng.integers(0, 100, (32, 32, 3), np.uint8) + 120 * disk[..., None]
        Image.fromarray(pixels.astype(np.uint8)).save(f"cells/{index}.png")
        Image.fromarray(disk.astype(np.uint8)).save(f"cells/{index}-mask.png")
        rows.append((f"cells/{index}.png", f"cells/{index}-mask.png"))
    with open("cells.csv", "w", newline="") as file:
        csv.writer(file).writerows(rows)


@pytest.mark.slow
def test_a_segmentation_trains_with_its_own_loss():
    pytest.importorskip("torchmetrics", reason="needs the extra metrics")
    write_cells()
    columns = "input.columns={image: 'path:image', mask: 'path:mask'}"
    pack = ("input=list", "input.path=cells.csv", columns, "input.labels=[mask]")
    run("pack", *pack, "output.path=cells.h5", "pack.split={train: 0.8, val: 0.2}")
    words = ("recipes=cells", "allow_targets=[cells]", "hydra.run.dir=run")
    run("train", "--config-dir", ".", *words)
    assert json.loads(Path("run/summary.json").read_text())["best"]["iou"] > 0.7
    images = "input.columns={image: 'path:image'}"
    run("predict", "run=run", "input=list", pack[1], images, "output=masks", "as=mask", words[1])
    guesses = sorted(Path("masks").rglob("*.png"))
    assert len(guesses) == 60
    guess, truth = (np.asarray(Image.open(path)) > 0 for path in (guesses[0], "cells/0-mask.png"))
    assert (guess & truth).sum() > 0.7 * (guess | truth).sum()


def write_words() -> None:
    """Write WAV files of three pitches and many lengths, and a CSV for each split."""
    soundfile = pytest.importorskip("soundfile", reason="needs the extra audio")
    rng = np.random.default_rng(0)
    Path("words").mkdir()
    for split, count in (("train", 60), ("val", 24)):
        rows = []
        for index in range(count):
            time_s = np.arange(rng.integers(1200, 4000)) / 8000
            wave = 0.3 * np.sin(2 * np.pi * (300 + 400 * (index % 3)) * time_s)
            wave += 0.05 * rng.standard_normal(len(wave))
            soundfile.write(f"words/{split}{index}.wav", wave.astype(np.float32), 8000)
            rows.append((f"{split}{index}.wav", ["no", "stop", "yes"][index % 3]))
        with open(f"words/{split}.csv", "w", newline="") as file:
            csv.writer(file).writerows(rows)


@pytest.mark.slow
def test_an_audio_dataset_trains_as_it_is_and_then_packed():
    write_words()
    allowed = "allow_targets=[keywords]"
    train = ("--config-dir", ".", "recipes=keywords", allowed)
    run("train", *train, "hydra.run.dir=own")
    for split in ("train", "val"):
        dataset = (
            f"input.dataset={{_target_: keywords.KeywordDataset, root: words, split: {split}}}"
        )
        fields = ("input.fields=[wave,label]", "input.kinds={wave: ragged}")
        run("pack", "input=dataset", dataset, *fields, f"output.path=words-{split}.h5", allowed)
    stores = ("data=hdf5", "data.train=words-train.h5", "data.val=words-val.h5")
    run("train", *train, *stores, "hydra.run.dir=packed")
    for name in ("own", "packed"):
        assert json.loads(Path(name, "summary.json").read_text())["best"]["accuracy"] > 0.9


def test_triplets_have_the_losses_of_their_plain_loop():
    signatures = imported("signatures")
    torch.manual_seed(0)
    torch.save(signatures.StrokeNet().state_dict(), "start.pth")
    own = ("recipes=signatures", "init=start.pth", "report_every=1", "hydra.run.dir=run")
    run("train", "--config-dir", ".", *own, "allow_targets=[signatures]", **ONE_THREAD)
    expected = signatures.train("start.pth")
    assert losses(Path("run")) == expected
    assert expected[-1] < 0.5 * expected[0]


def write_energy() -> None:
    """Write a table of the load and the temperature of each hour."""
    rng = np.random.default_rng(0)
    hours = np.arange(600)
    temperature = 15 + 8 * np.sin(2 * np.pi * hours / 24) + rng.standard_normal(600)
    load = 50 - 2 * temperature + 5 * np.cos(2 * np.pi * hours / 168) + rng.standard_normal(600)
    with open("energy.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["hour", "load", "temperature"])
        writer.writerows(np.stack([hours, load, temperature], 1).tolist())


def test_a_forecaster_has_the_losses_of_its_plain_loop_and_predicts():
    write_energy()
    forecast = imported("forecast")
    torch.save(forecast.Forecaster(2).state_dict(), "start.pth")
    own = ("recipes=forecast", "init=start.pth", "report_every=1", "hydra.run.dir=run")
    run("train", "--config-dir", ".", *own, "allow_targets=[forecast]", **ONE_THREAD)
    expected = forecast.train("energy.csv", "start.pth")
    assert losses(Path("run")) == expected[0]
    assert losses(Path("run"), "val") == pytest.approx(expected[1], rel=1e-6)
    dataset = (
        "{_target_: forecast.Windows, path: energy.csv, columns: [load, temperature], split: val}"
    )
    given = ("input=dataset", f"input.dataset={dataset}", "input.fields=[window,target]")
    run("predict", "run=run", *given, "output=forecast.csv", "allow_targets=[forecast]")
    with open("forecast.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 600 - 480 - 48 - 6 + 1
    assert {f"value_{hour}" for hour in range(6)} <= {*rows[0]}


def test_each_port_has_at_most_30_new_lines():
    for path in (PORTS / "recipes").iterdir():
        assert len(path.read_text().splitlines()) <= 30


def test_the_projects_know_nothing_of_paceline():
    of_the_port = ["adversarial.py"]  # an objective in turns must say what it returns
    for path in PORTS.glob("*.py"):
        if path.name in of_the_port:
            continue
        assert "import framework" not in path.read_text()
        assert "from framework" not in path.read_text()
