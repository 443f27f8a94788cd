"""Somebody's DCGAN learns with Paceline what it learns in a plain loop, bit by bit."""

import json

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from PIL import Image
from torch.nn.functional import binary_cross_entropy_with_logits

from framework.augment.normalize import Normalize
from framework.order.batches import Order
from framework.store.open_store import open_store
from framework.train.noise import key_noise, record_noise
from tests.examples import ported

EPOCHS, BATCH, NZ, NUM = 3, 16, 32, 40  # the last batch of an epoch is short
ALLOWED = "allow_targets=[adversarial]"
WORDS = (*ported.words_of("dcgan", ALLOWED), f"epochs={EPOCHS}", f"batch_size={BATCH}")


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """Return a folder with the project, a store of images, and the weights that all start from."""
    folder = ported.copied(tmp_path_factory.mktemp("gan") / "project")
    rng = np.random.default_rng(0)
    (folder / "flowers" / "iris").mkdir(parents=True)
    for number in range(NUM):
        pixels = rng.integers(0, 256, (16, 16, 3), np.uint8)
        Image.fromarray(pixels).save(folder / "flowers" / "iris" / f"{number:02}.png")
    words = ("input=folder", "input.path=flowers", "output.path=flowers.h5", "pack.encode=raw")
    ported.run(folder, "pack", *words)
    torch.manual_seed(0)
    torch.save(new_gan(folder).state_dict(), folder / "start.pth")
    return folder


def new_gan(folder):
    return ported.imported("adversarial", folder).Gan(NZ)


def says(logits, answer):
    return binary_cross_entropy_with_logits(logits, torch.full_like(logits, answer))


def plain_loop(folder, accumulate=1, rank=0, world_size=1):
    """Train as PyTorch's tutorial does, and save the weights of rank 0."""
    gan = new_gan(folder)
    gan.load_state_dict(torch.load(folder / "start.pth"))
    adam = [torch.optim.Adam(net.parameters(), 2e-4, (0.5, 0.999)) for net in (gan.D, gan.G)]
    images = open_store(str(folder / "flowers.h5")).read(torch.arange(NUM))["image"]
    normalize = Normalize("image", mean=[0.5] * 3, std=[0.5] * 3)
    ranks = {"rank": rank, "world_size": world_size, "accumulate": accumulate}
    order = Order(NUM, BATCH, shuffle=True, **ranks)
    for epoch in range(EPOCHS):
        key_noise(0, epoch)
        passes = []
        for index, weight, last, _ in order.shares(epoch, 0):
            passes.append((normalize({"index": index, "image": images[index]}, None), weight))
            if not last:
                continue
            for net, optimizer in zip(("D", "G"), adam, strict=True):
                gan.zero_grad(set_to_none=True)
                for batch, own in passes:
                    fake = gan.G(record_noise(batch, NZ, 1, 1))
                    if net == "D":
                        loss = says(gan.D(batch["image"]), 1.0) + says(gan.D(fake.detach()), 0.0)
                    else:
                        loss = says(gan.D(fake), 1.0)
                    (loss * own).backward()
                for weight_of_net in getattr(gan, net).parameters():
                    if world_size > 1:
                        dist.all_reduce(weight_of_net.grad)
                        weight_of_net.grad /= world_size
                optimizer.step()
            passes = []
    if rank == 0:
        torch.save(gan.state_dict(), folder / "plain.pt")


def plain_rank(rank, folder):
    meet = f"file://{folder / 'meet'}"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=2)
    plain_loop(folder, rank=rank, world_size=2)
    dist.destroy_process_group()


def assert_same(run, plain):
    learned = torch.load(run / "checkpoints" / "last.pt")
    expected = torch.load(plain)
    assert learned.keys() == expected.keys()
    assert [name for name in learned if not torch.equal(learned[name], expected[name])] == []


@pytest.mark.parametrize("accumulate", [1, 2])
def test_it_learns_what_a_plain_loop_learns(project, accumulate):
    name = f"passes{accumulate}"
    ported.run(project, *WORDS, f"accumulate={accumulate}", f"hydra.run.dir={name}")
    plain_loop(project, accumulate)
    assert_same(project / name, project / "plain.pt")
    lines = (project / name / "metrics.jsonl").read_text().splitlines()
    report = json.loads(lines[0])
    assert report["loss"] == pytest.approx(report["critic"] + report["generator"], abs=1e-5)
    assert report["rates"] == {"critic": 2e-4, "generator": 2e-4}


@pytest.mark.slow
def test_a_resumed_one_learns_the_same(project):
    ported.run(project, *WORDS, "accumulate=2", "max_steps=4", "hydra.run.dir=parts")
    ported.run(project, "train", "resume=parts", "max_steps=null", ALLOWED)
    plain_loop(project, accumulate=2)
    assert_same(project / "parts", project / "plain.pt")


@pytest.mark.slow
def test_two_ranks_learn_what_a_plain_loop_of_two_processes_learns(project):
    words = (*WORDS, "parallel=ddp", "parallel.sync_batch_norm=false")
    ported.run(project, *words, "hydra.run.dir=two")
    mp.spawn(plain_rank, (project,), nprocs=2)
    assert_same(project / "two", project / "plain.pt")
