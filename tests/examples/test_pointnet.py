"""Somebody's PointNet learns with Paceline what it learns in its loop, bit by bit."""

import json

import h5py
import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from framework.order.batches import Order
from framework.order.draws import record_seeds
from framework.system.rng import seed_host_generators
from tests.cli.command import losses
from tests.examples import ported

pytestmark = pytest.mark.usefixtures("one_thread")
SHAPES = np.array([[1, 1, 1], [1, 1, 0.2], [1, 0.2, 0.2], [0.6, 0.6, 1]], np.float32)
ALLOWED = "allow_targets=[pointnet,clouds]"
WORDS = ported.words_of("pointnet", ALLOWED)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """Return a folder with the project, ModelNet's files, and weights to start from."""
    pytest.importorskip("torchmetrics", reason="needs the extra metrics")
    folder = ported.copied(tmp_path_factory.mktemp("pointnet") / "project")
    rng = np.random.default_rng(0)
    (folder / "modelnet").mkdir()
    for split, sizes in (("train", (40, 30)), ("test", (24,))):
        names = [f"ply_data_{split}{number}.h5" for number in range(len(sizes))]
        for name, size in zip(names, sizes, strict=True):
            label = rng.integers(0, 4, (size, 1)).astype(np.uint8)
            points = rng.standard_normal((size, 2048, 3)).astype(np.float32)
            points /= np.linalg.norm(points, axis=2, keepdims=True)
            with h5py.File(folder / "modelnet" / name, "w") as file:
                file["data"] = points * SHAPES[label]
                file["label"] = label
        lines = [f"data/modelnet40_ply_hdf5_2048/{name}\n" for name in names]
        (folder / "modelnet" / f"{split}_files.txt").write_text("".join(lines))
    torch.manual_seed(0)
    torch.save(ported.imported("pointnet", folder).PointNet().state_dict(), folder / "start.pth")
    return folder


class SameDraws:
    """Batches of a Dataset in the order of a run, and with its random numbers."""

    def __init__(self, dataset):
        self.dataset = dataset
        self.order = Order(len(dataset), 16, shuffle=True, last="drop")
        self.epoch = 0

    def __iter__(self):
        for share in self.order.shares(self.epoch):
            seeds = record_seeds(share.indices, 0, self.epoch)
            yield default_collate(list(map(self.item, share.indices.tolist(), seeds.tolist())))
        self.epoch += 1

    def item(self, index, seed):
        seed_host_generators(seed)
        return self.dataset[index]


def test_it_has_the_losses_of_its_loop_bit_by_bit(project):
    ported.run(project, *WORDS, "hydra.run.dir=run", "epochs=4")
    theirs = ported.imported("pointnet")
    loader = SameDraws(theirs.ModelNet(project / "modelnet"))
    expected = theirs.train(loader, project / "start.pth", epochs=4)
    assert losses(project / "run") == expected
    assert expected[-1] < 0.4 * expected[0]


@pytest.mark.slow
def test_a_resumed_one_learns_the_same_and_evaluates(project):
    ported.check_resumed(project, WORDS, 18, ALLOWED)
    done = ported.run(project, "evaluate", "run=parts", "output=evaluated", ALLOWED)
    assert "24 records of {_target_: pointnet.ModelNet, folder: modelnet," in done.out + done.err
    figures = json.loads((project / "evaluated" / "evaluation.json").read_text())
    best = json.loads((project / "parts" / "summary.json").read_text())["best"]
    assert figures["sets"]["val"]["means"]["accuracy"] == best["accuracy"]
