import shutil
from contextlib import closing
from pathlib import Path

import pytest
import torch

from framework.cli.allowed import Grant
from framework.cli.compose_config import composed
from framework.config.assemble import assemble, find_device, fuses, numbered
from framework.config.choice_notes import choice_notes
from framework.data.source import StoreSource
from framework.data.synthetic import SyntheticSource
from framework.errors import ConfigError
from tests.cli.command import is_one_error_line, losses, paceline, started


@pytest.mark.parametrize(
    ("given", "numbered_name"), [("cuda", "cuda:0"), ("cuda:1", "cuda:1"), ("cpu", "cpu")]
)
def test_a_gpu_has_a_number(given, numbered_name):
    assert str(numbered(torch.device(given))) == numbered_name


NOBODY = Grant(typed=False, exported="")
SYNTHETIC = [
    "data=synthetic",
    "data.val=null",
    "epochs=1",
    "max_steps=2",
    "report_every=1",
    "workers.num=0",
]


@pytest.mark.parametrize(
    ("words", "exact"),
    [
        (["augment=normalize"], True),
        (["augment=kornia", "augment.pipeline=[{name: RandomHorizontalFlip}]"], False),
    ],
)
def test_an_exact_augmentation_is_compiled_on_a_gpu_if_that_was_asked_for(words, exact):
    config = composed([*SYNTHETIC, "prepare=null", "compile=true", *words], NOBODY)[0]
    with closing(assemble(config, ())) as assembly:
        assert not any("compile" in note for note in choice_notes(assembly))
        assert not fuses(assembly.config, assembly.augment, torch.device("cpu"))
        assert fuses(assembly.config, assembly.augment, torch.device("cuda", 0)) == exact


def test_a_failed_assembly_closes_what_it_opened(monkeypatch):
    closed = []

    def close(source):
        closed.append(source)

    monkeypatch.setattr(StoreSource, "close", close)
    monkeypatch.setattr(SyntheticSource, "close", close)
    config = composed([*SYNTHETIC, "prepare=null", "last=drop", "batch_size=1000000"], NOBODY)[0]
    with pytest.raises(ConfigError, match="C134"):
        assemble(config, ())
    assert closed


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="needs a compiler")
def test_a_compiled_model_learns_the_same_and_is_saved_under_the_same_names():
    assert paceline("train", *SYNTHETIC, "hydra.run.dir=plain").code == 0
    done = started(
        "train",
        *SYNTHETIC,
        "compile=true",
        "hydra.run.dir=compiled",
        TORCHINDUCTOR_CACHE_DIR=str(Path("cache").absolute()),
    )
    assert done.code == 0, done.err
    assert losses(Path("compiled")) == pytest.approx(losses(Path("plain")), rel=1e-4)
    names = [
        list(torch.load(f"{run}/checkpoints/last.pt", weights_only=True))
        for run in ("plain", "compiled")
    ]
    assert names[0] == names[1]
    assert any(Path("cache").rglob("*.cpp"))  # it was compiled


@pytest.mark.slow
def test_without_a_compiler_one_line_says_so():
    done = started("train", *SYNTHETIC, "compile=true", CXX="", PATH=str(Path("empty").absolute()))
    assert done.code == 5
    assert is_one_error_line(done, "R105")


def test_ranks_do_not_touch_the_first_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    # in a build without CUDA, touching it raises
    assert find_device("cuda") == torch.device("cuda", 0)
    assert find_device("auto") == torch.device("cuda", 0)
