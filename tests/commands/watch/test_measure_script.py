"""What is measured after a script has ended."""

import random
import sys
import time
from importlib.machinery import ModuleSpec
from types import ModuleType

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

from framework.commands.watch.measure_script import gather_script_facts, repeated_item_bytes
from framework.measure.usage import MachineUse
from tests.commands.watch.loops import PAUSE_S, Numbers, Pausing, hooked, loader, train

IDLE = MachineUse(1.0)


class Photos(Dataset):
    """Large images, cut to a small size."""

    def __init__(self, path):
        self.path = path

    def __len__(self):
        return 6

    def __getitem__(self, index):
        image = Image.open(self.path).convert("RGB").resize((8, 8))
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).float(), 1


def facts_of(data, model, may_read=True, **options):
    with hooked() as hooks:
        train(data, model, **options)
    return gather_script_facts(hooks, IDLE, may_read)


def test_the_loader_the_items_and_the_steps_are_described():
    facts = facts_of(loader(20, 0.002), Pausing(), epochs=2)
    assert (facts.steps, facts.records, facts.epochs) == (19, 38, 2)
    assert facts.loader is not None
    assert (facts.loader.workers, facts.loader.batch_size) == (0, 2)
    assert facts.loader.dataset.endswith("Numbers")
    assert facts.items is not None
    assert facts.items.item_s > 0.002
    assert (facts.items.num_items, facts.items.item_bytes, facts.items.refusal) == (20, 20, "")
    assert facts.largest == "wait"
    assert facts.headroom > 1


def test_what_lies_between_epochs_is_distinguished_from_what_came_before():
    with hooked() as hooks:
        time.sleep(6 * PAUSE_S)
        for _ in range(3):
            train(loader(), Pausing())
            time.sleep(PAUSE_S)
    facts = gather_script_facts(hooks, IDLE, False)
    assert facts.before_s >= 6 * PAUSE_S
    assert facts.outside_s >= 3 * PAUSE_S


def test_large_images_are_seen(tmp_path):
    path = tmp_path / "large.jpg"
    Image.fromarray(np.zeros((120, 160, 3), np.uint8)).save(path)
    data = DataLoader(Photos(str(path)), batch_size=2)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 2))
    items = facts_of(data, model).items
    assert items is not None
    assert (items.decoded, items.size) == ((120, 160), (8, 8))
    assert 0 < items.decode_share < 1


@pytest.mark.parametrize(
    ("spec", "path"), [(None, "mine.Photos"), (ModuleSpec("pkg.train", None), "pkg.train.Photos")]
)
def test_a_class_of_the_script_is_named_as_others_import_it(spec, path, monkeypatch):
    script = ModuleType("__main__")
    script.__file__ = "/project/mine.py"
    script.__spec__ = spec
    monkeypatch.setitem(sys.modules, "__main__", script)
    photos = type("Photos", (Numbers,), {"__module__": "__main__"})
    facts = facts_of(DataLoader(photos()), Pausing(), may_read=False)
    assert facts.loader is not None
    assert facts.loader.dataset == path


def test_items_that_fail_leave_a_gap(monkeypatch):
    with hooked() as hooks:
        train(loader(20), Pausing())
    monkeypatch.setattr(Numbers, "__getitem__", lambda *_: 1 / 0)
    assert gather_script_facts(hooks, IDLE, True).items is None


OWN = np.random.default_rng(0)


class Made:
    """A Dataset from a function."""

    def __init__(self, make, count=20):
        self.make = make
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.make(index)


def rarely(index):
    return {"x": torch.ones(2) if random.random() > -1 else 0, "y": index}


def test_a_fixed_dataset_passes_and_draws_nothing():
    before = torch.get_rng_state()
    assert repeated_item_bytes(Made(lambda index: (torch.full((2,), index), index))) == (24, "")
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        pytest.param(lambda i: {"a": 1, "b": torch.rand(3)}, "twice gives another b", id="torch"),
        pytest.param(lambda i: (OWN.random(), 1), "twice gives another field0", id="own generator"),
        pytest.param(rarely, "draw random numbers", id="unused draw"),
        pytest.param(lambda i: torch.zeros(i + 1), "field value is float32 [2], and", id="shape"),
        pytest.param(lambda i: {"a": None}, "field a is no array of numbers", id="no number"),
        pytest.param(lambda i: ("text", 1), "field0 is no array of numbers", id="text"),
    ],
)
def test_what_changes_is_refused(make, words):
    num_bytes, refusal = repeated_item_bytes(Made(make))
    assert num_bytes == 0
    assert words in refusal
