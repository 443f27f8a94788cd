"""A project of the Lightning-Hydra template has with Paceline the losses of its plain loop."""

import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf
from torch.utils.data import DataLoader

from framework.order.batches import Order
from tests.cli.command import losses, paceline

TEMPLATE = Path(__file__).parents[2] / "examples" / "ports" / "template"
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",  # another number adds in another order
    "XDG_CONFIG_HOME": "config-home",  # keeps what the test trusts
}
EXAMPLE = (
    *("train", "experiment=example", "device=cpu", "report_every=1"),
    *("loader=plain", "workers.num=0"),  # the numbers of any other loader, without its processes
)


def run(*words):
    done = paceline(*words, **ENVIRONMENT)
    assert done.code == 0, done.err
    return done


@pytest.fixture(autouse=True)
def project():
    """Copy the project into the test's own directory, write its data, and trust its package."""
    shutil.copytree(TEMPLATE, ".", dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    write_mnist(Path("data/MNIST/raw"))
    run("trust", "yes=true")


def write_mnist(raw):
    """Write the four files of MNIST, with 560 and 80 images that are ten shapes and much noise."""
    rng = np.random.default_rng(0)
    shapes = rng.integers(0, 24, (10, 28, 28))
    raw.mkdir(parents=True)
    for name, count in (("train", 560), ("t10k", 80)):
        labels = rng.integers(0, 10, count).astype(np.uint8)
        images = shapes[labels] + rng.integers(0, 180, (count, 28, 28))
        arrays = {"images-idx3": images.astype(np.uint8), "labels-idx1": labels}
        for kind, array in arrays.items():
            header = np.array([0x800 + array.ndim, *array.shape], ">i4")
            (raw / f"{name}-{kind}-ubyte").write_bytes(header.tobytes() + array.tobytes())


def plain_loop(seed):
    """Run the project's own loop on the batches that Paceline trains on."""
    from src.train import fit

    files = {"data": "mnist", "model": "mnist", "paths": "default", "trainer": "default"}
    groups = {key: OmegaConf.load(f"configs/{key}/{name}.yaml") for key, name in files.items()}
    config = OmegaConf.merge(groups, OmegaConf.load("configs/experiment/example.yaml"))
    datamodule = instantiate(config.data)
    epochs = itertools.count()

    def train_dataloader():
        data = datamodule.data_train
        order = Order(len(data), datamodule.batch_size, shuffle=True, seed=seed)
        batches = [index.tolist() for index, *_ in order.shares(next(epochs), 0)]
        return DataLoader(data, batch_sampler=batches)

    datamodule.train_dataloader = train_dataloader
    torch.manual_seed(seed)
    return fit(instantiate(config.model), datamodule, **config.trainer)


def test_weights_losses_and_validations_are_those_of_the_plain_loop(monkeypatch):
    run(*EXAMPLE, "hydra.run.dir=run")
    monkeypatch.syspath_prepend(Path.cwd())
    expected, validations = plain_loop(seed=12345)
    assert losses(Path("run")) == expected
    rows = map(json.loads, Path("run/metrics.jsonl").read_text().splitlines())
    validated = [(row["loss"], row["accuracy"]) for row in rows if row["split"] == "val"]
    assert validated == validations
    assert validated[-1][0] < validated[0][0]


@pytest.mark.slow
def test_a_resumed_one_has_the_same_losses_and_rates():
    run(*EXAMPLE, "hydra.run.dir=whole")
    run(*EXAMPLE, "max_steps=36", "hydra.run.dir=parts")
    run("train", "resume=parts", "max_steps=null")
    whole, parts = (Path(name, "metrics.jsonl").read_text() for name in ("whole", "parts"))
    assert learned(parts) == learned(whole)
    assert len({rate for _, _, rate in learned(whole)}) > 1  # the plateau was reached


def learned(text):
    rows = [row for row in map(json.loads, text.splitlines()) if row["split"] == "train"]
    return [(row["step"], row["loss"], row["lr"]) for row in rows]


@pytest.mark.slow
def test_a_sweep_takes_the_words_of_the_project():
    run("train", "-m", *EXAMPLE[1:], "model.net.lin1_size=16,32", "epochs=1", "hydra.sweep.dir=all")
    jobs = [json.loads(path.read_text()) for path in sorted(Path("all").glob("*/resolved.json"))]
    assert [job["model"]["net"]["lin1_size"] for job in jobs] == [16, 32]
    assert all(job["tags"] == ["mnist", "simple_dense_net"] for job in jobs)


@pytest.mark.slow
@pytest.mark.parametrize(("preset", "steps"), [("tiny", 3), ("overfit", 100), ("profile", 16)])
def test_debug_presets_work(preset, steps):
    run(*EXAMPLE, f"debug={preset}", "hydra.run.dir=run")
    assert json.loads(Path("run/summary.json").read_text())["steps"] == steps


def test_what_is_new_has_at_most_50_lines():
    new = [*TEMPLATE.glob("conf/*/*.yaml"), *TEMPLATE.glob("recipes/*.yaml")]
    new.append(TEMPLATE / "src" / "data" / "splits.py")
    assert sum(len(path.read_text().splitlines()) for path in new) <= 50
