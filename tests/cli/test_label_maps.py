"""Label maps as users meet them.

The real command packs and trains them. Each promise of docs/images.md has a test.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from torch import nn

from framework.contracts.batch import Batch
from framework.contracts.records import IGNORE
from framework.contracts.training import Outcome
from framework.image.decode import encode_png
from framework.store.open_store import open_store
from tests.cli.command import paceline
from tests.contract.cases import label_map
from tests.faults.forked import is_one_line
from tests.image.test_label_map import png

PAIRS = ("pack", "input=pairs", "input.fields={image: photos, mask: masks}", "workers=0")
MARKED = (*PAIRS, "input.labels=[mask]")


class Segment:
    """Cross-entropy of each pixel.

    It fails if a class was invented, or if the image and its label map were moved apart.
    """

    def __init__(self, exact: bool) -> None:
        self.exact = exact

    def __call__(self, model: nn.Module, batch: Batch) -> Outcome:
        image, mask = batch["image"], batch["mask"]
        assert mask.dtype == torch.uint8
        assert set(mask.unique().tolist()) <= {0, 7, IGNORE}, mask.unique()
        if image.dtype == torch.uint8:  # the image's first channel is 30 times its map
            same = ((image[:, :1] > 105) == (mask == 7))[mask != IGNORE].float().mean().item()
            assert same == 1 if self.exact else same > 0.85, same
        scores = model(image.float() / 255)
        loss = nn.functional.cross_entropy(scores, mask[:, 0].long(), ignore_index=IGNORE)
        right = (scores.argmax(1) == mask[:, 0]).float().mean((1, 2))
        return Outcome(loss, {"right": right}, len(image))

    def better(self, new: Mapping[str, float], old: Mapping[str, float]) -> bool:
        return new["loss"] < old["loss"]


@pytest.fixture(autouse=True)
def _pictures():
    """Write photographs, their masks of classes 0 and 7, and a recipe that trains on them."""
    for number in range(12):
        for folder, data in (
            ("photos", _photo(number)),
            ("masks", encode_png(label_map(number, 32, 24))),
        ):
            path = Path(folder, f"{number:02d}.png")
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
    for path, text in {
        "model/pixel.yaml": "# a pixel\n_target_: torch.nn.Conv2d\n"
        "in_channels: 3\nout_channels: 8\nkernel_size: 1\n",
        "objective/pixels.yaml": "# segments\n"
        "_target_: tests.cli.test_label_maps.Segment\nexact: true\n",
        "recipes/seg.yaml": "# @package _global_\n"
        "defaults: [override /model: pixel, override /objective: pixels, "
        "override /augment: none, override /optim: adam]\n"
        "data: {train: x.h5, val: x.h5}\nbatch_size: 4\nepochs: 2\n",
    }.items():
        Path("conf", path).parent.mkdir(parents=True, exist_ok=True)
        Path("conf", path).write_text(text)


def _photo(number: int) -> bytes:
    values = label_map(number, 32, 24)
    return encode_png(np.concatenate([30 * values, 255 - 30 * values, 20 * values]))


def train(*words: str):
    words = (
        "--config-dir",
        "conf",
        "recipes=seg",
        "allow_targets=[tests]",
        "sink=[jsonl]",
        "workers.num=0",
        *words,
    )
    done = paceline("train", *words, "hydra.run.dir=run")
    assert done.code == 0, done.err
    return [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]


def packed(*words: str, path: str = "x.h5"):
    done = paceline(*MARKED, f"output.path={path}", *words)
    assert done.code == 0, done.err
    return done


def stored(path: str = "x.h5") -> list[np.ndarray]:
    """Return the label maps' numbers as training sees them."""
    store = open_store(path)
    values = store.read(torch.arange(store.manifest.num_records))["mask"]
    assert store.manifest.fields["mask"].kind == "labels"
    maps = [
        v[0].numpy()
        if isinstance(v, torch.Tensor)
        else cv2.imdecode(np.frombuffer(v, np.uint8), -1)
        for v in values
    ]
    store.close()
    return maps


@pytest.mark.parametrize("output", ["hdf5", "lmdb"])
def test_pack_size_takes_the_nearest_pixel(output):
    packed("pack.encode=raw", "pack.size=[45,45]", f"output={output}", path="x.out")
    assert all(
        set(np.unique(values)) == {0, 7} and values.shape == (45, 45) for values in stored("x.out")
    )


@pytest.mark.parametrize("encode", ["keep", "png", "raw"])
@pytest.mark.parametrize("transform", ["resize", "random_resized_crop"])
def test_scaling_while_training_takes_the_nearest_pixel(transform, encode):
    packed(f"pack.encode={encode}")
    train(f"transform={transform}", "transform.size=[40,50]", "objective.exact=false")


def test_a_label_map_as_jpeg_is_refused_before_anything_is_packed():
    assert is_one_line(
        paceline(*MARKED, "pack.encode=jpeg", "output.path=x.h5"), "C177", 2, "label map mask"
    )
    assert not list(Path().glob("x.h5*"))


def test_palettes_as_of_pascal_voc_keep_their_indices_and_the_guess_is_reported():
    wanted = []
    for number, path in enumerate(sorted(Path("masks").iterdir())):
        wanted.append(
            np.random.default_rng(number).choice([0, 1, 15, 20, 255], (32, 24)).astype(np.uint8)
        )
        path.write_bytes(png(wanted[-1]))
    done = paceline(*PAIRS, "pack.encode=raw", "output.path=x.h5")
    assert done.code == 0, done.err
    assert "note: mask: PNGs with a palette" in done.err
    pairs = zip(stored(), wanted, strict=True)
    assert all(np.array_equal(stored_map, expected) for stored_map, expected in pairs)
    shown = paceline("inspect", "x.h5", "grid=grid.png")
    assert "field mask: label map, raw uint8 1x32x24" in shown.out


@pytest.mark.parametrize("augment", ["crop_flip", "flip", "cutmix"])
def test_what_moves_the_image_moves_its_label_map_alike(augment):
    packed()
    words = {
        "crop_flip": ["augment.mean=null", "augment.std=null"],
        "flip": ["augment.flip_vertical=0.5"],
        "cutmix": [],
    }
    target = ["augment.target=mask"] if augment == "cutmix" else []
    train(f"augment={augment}", *words[augment], *target)


@pytest.mark.parametrize(
    "words",
    [["augment=normalize", "augment.field=[image,mask]"], ["augment=mixup", "augment.target=mask"]],
)
def test_what_would_blend_class_numbers_is_refused_before_the_first_step(words):
    packed()
    done = paceline("train", "--config-dir", "conf", "recipes=seg", "allow_targets=[tests]", *words)
    assert is_one_line(done, "C193", 2, "mask")


def test_values_are_mapped_and_one_that_is_not_is_named():
    packed("input.values={0: ignore, 7: 1}")
    assert all(set(np.unique(values)) == {IGNORE, 1} for values in stored())
    done = paceline(*MARKED, "input.values={0: 0}", "output.path=y.h5")
    assert is_one_line(done, "D170", 3, "00: mask", "holds 7")


def test_a_store_packed_before_can_be_marked():
    np.savez("x.npz", image=np.zeros((4, 3, 8, 8), np.uint8), mask=np.full((4, 8, 8), 7))
    assert paceline("pack", "input=arrays", "input.path=x.npz", "output.path=old.h5").code == 0
    done = paceline(
        "pack",
        "input=store",
        "input.path=old.h5",
        "input.labels=[mask]",
        "output.path=x.h5",
        "workers=0",
    )
    assert done.code == 0, done.err
    assert all(np.array_equal(values, np.full((8, 8), 7)) for values in stored())


def test_a_recipe_may_mark_the_label_maps_it_packs():
    text = (
        Path("conf/recipes/seg.yaml")
        .read_text()
        .replace("defaults: [", "defaults: [/input@prepare.train.input: pairs, ")
    )
    text = text.replace("data: {train: x.h5, val: x.h5}", "dataset: made\ndata: {val: null}")
    Path("conf/recipes/seg.yaml").write_text(
        text + "prepare: {train: {input: {fields: {image: photos, mask: masks}, labels: [mask]}, "
        "pack: {encode: raw}}}\n"
    )
    train()
    assert len(stored("made/train.h5")) == 12


@pytest.mark.slow
def test_a_u_net_learns_from_a_label_map():
    packed("pack.encode=raw")
    Path("conf/model/net.yaml").write_text(
        "# a U-Net and its classes\n_target_: torch.nn.Sequential\n_args_:\n"
        "  - {_target_: framework.model.unet.UNet, channels: 3, width: 4, depth: 1}\n"
        "  - {_target_: torch.nn.Conv2d, in_channels: 3, out_channels: 8, kernel_size: 1}\n"
    )
    reports = [
        report
        for report in train("model=net", "epochs=20", "optim.lr=0.05")
        if report["split"] == "val"
    ]
    assert reports[-1]["right"] > max(0.95, reports[0]["right"])
