"""A sample of the hostile corpus of ``python -m tests.faults``, each refused in one line."""

import os
import random
import sys
import tarfile
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from hydra.utils import instantiate

from tests.cli.command import paceline
from tests.faults import hostile
from tests.store import test_hdf5_store as plants

DRAW = random.Random(20)
KINDS = [make() for make in hostile.KINDS.values()]
SAMPLE = [
    payload.name
    for kind, count in zip(KINDS, (1, 1, 2, 1, 1), strict=True)
    for payload in DRAW.sample(kind, count)
]


@pytest.fixture(scope="module", autouse=True)
def made_once(tmp_path_factory):
    """Make the run that the tests resume, outside of any test's folder."""
    folder = hostile.template()
    yield
    folder.cleanup()
    hostile.template.cache_clear()


@pytest.fixture(autouse=True)
def nothing_evil_is_imported(monkeypatch):
    monkeypatch.delitem(sys.modules, "evil", raising=False)
    yield
    sys.modules.pop("evil", None)


@pytest.mark.parametrize("name", SAMPLE)
def test_a_hostile_payload_is_refused_in_one_line(name):
    number = [payload.name for payload in hostile.attempts()].index(name)
    assert hostile.attempt(number) == ""


def test_there_are_as_many_as_promised():
    least = (30, 40, 40, 20, 10)
    assert all(len(kind) >= count for kind, count in zip(KINDS, least, strict=True))
    assert len({payload.name for payload in hostile.attempts()}) == len(hostile.attempts())


@pytest.mark.parametrize("call", ["os.system", "torch.load inside"])
def test_a_checkpoint_would_work_on_a_careless_reader(call, monkeypatch):
    hostile.evil_files()
    monkeypatch.syspath_prepend(".")
    torch.save({"model": hostile.CALLS[call]()}, "x.pt")
    torch.load("x.pt", weights_only=False)
    assert Path(hostile.CANARY).exists()


@pytest.mark.parametrize("make", [hostile.legacy, hostile.tarred])
def test_a_file_of_another_format_would_work_on_a_careless_reader(make):
    Path("x.pt").write_bytes(make())
    try:
        torch.load("x.pt", weights_only=False)
    except Exception as error:  # noqa: BLE001  # what is executed is executed before it fails
        print(error)
    assert Path(hostile.CANARY).exists()


@pytest.mark.parametrize("target", ["shutil.copy", "evil.Net"])
def test_a_configuration_would_work_on_a_careless_reader(target, monkeypatch):
    hostile.evil_files()
    monkeypatch.syspath_prepend(".")
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    instantiate({"_target_": target, **hostile.TARGETS[target]})
    assert Path(hostile.CANARY).exists()


@pytest.mark.parametrize("plant", [plants._linked_outside, plants._stored_outside, plants._virtual])
def test_a_store_would_lead_a_careless_reader_out(plant):
    with h5py.File("x.h5", "w") as file:
        plant(file, "x")
    with h5py.File("x.h5") as file:
        assert len(file["x"][:]) == 3


def test_an_archive_would_lead_a_careless_reader_out():
    os.mkdir("box")
    os.chdir("box")
    hostile.tar("../written.jpg", b"x")
    with tarfile.open("x.tar") as archive:
        archive.extractall(filter="fully_trusted")
    assert Path("../written.jpg").exists()


def test_arrays_of_objects_would_work_on_a_careless_reader():
    Path("x.npy").write_bytes(hostile.numpy_objects())
    np.load("x.npy", allow_pickle=True)
    assert Path(hostile.CANARY).exists()


def test_what_is_allowed_still_runs():
    words = ["limit=16", "max_steps=1", "model._target_=framework.model.digits_net.DigitsCNN"]
    assert paceline("train", *words, "sink=[jsonl]").code == 0
