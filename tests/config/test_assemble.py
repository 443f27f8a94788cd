import shutil
from pathlib import Path

import pytest
import torch
from paceline_examples.digits_net import DigitsCNN
from torch import nn

from framework.config.assemble import check_fit, numbered
from framework.errors import ConfigError
from framework.objective.classify import Classify
from tests.cli.command import is_one_error_line, losses, paceline

# -------------------------------------------------------------------------------------------------------------- check_fit

CONFIG = {"model": {"_target_": "paceline_examples.digits_net.DigitsCNN"}}


def batch(channels=1):
    return {
        "index": torch.arange(2),
        "image": torch.zeros(2, channels, 8, 8),
        "label": torch.tensor([0, 9]),
    }


def test_a_model_that_fits_is_left_in_training_mode_and_unchanged():
    model = DigitsCNN(1, 10, 2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    check_fit(model, Classify("image", "label", 0.0), batch(), CONFIG)
    assert model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("given", "found"), [("cuda", "cuda:0"), ("cuda:1", "cuda:1"), ("cpu", "cpu")]
)
def test_a_gpu_has_a_number(given, found):
    assert str(numbered(torch.device(given))) == found


UNFIT = [
    (DigitsCNN(3, 10, 2), Classify("image", "label", 0.0)),  # channels
    (DigitsCNN(1, 3, 2), Classify("image", "label", 0.0)),  # classes
    (DigitsCNN(1, 10, 2), Classify("picture", "label", 0.0)),  # a field that is not there
    (DigitsCNN(1, 10, 2), Classify("label", "image", 0.0)),  # the wrong way round
]


@pytest.mark.parametrize(("model", "objective"), UNFIT)
def test_a_model_that_does_not_fit_the_data_is_told_with_the_data_s_shapes(model, objective):
    with pytest.raises(
        ConfigError, match=r"^error\[C118\]: model = paceline_examples.*: does not fit the data's"
    ) as caught:
        check_fit(model, objective, batch(), CONFIG)
    assert "image (1, 8, 8), label ()" in str(caught.value)
    assert "set the model's keys" in str(caught.value)


# ---------------------------------------------------------------------------------------------------------- the model's keys

SYNTHETIC = [
    "data=synthetic",
    "data.val=null",
    "epochs=1",
    "max_steps=2",
    "report_every=1",
    "workers.num=0",
]


def test_the_augmentation_is_compiled_where_that_was_asked_for_and_is_exact_and_not_on_the_cpu(
    monkeypatch,
):
    from framework.cli.allowed import Grant
    from framework.cli.compose_config import composed
    from framework.commands.probe import Probe
    from framework.config.assemble import Assembly

    for words, exact in (
        [["augment=normalize"], True],
        [["augment=kornia", "augment.pipeline=[{name: RandomHorizontalFlip}]"], False],
    ):
        config, allowed = composed(
            [*SYNTHETIC, "compile=true", *words], Grant(typed=False, exported="")
        )
        probe = Probe(config, allowed)
        try:
            assembly: Assembly = probe.assembly
            assert not assembly._fuses
            assert not any("compile" in note for note in assembly.notes)
            monkeypatch.setattr(assembly, "device", torch.device("cuda", 0))
            assert assembly._fuses == exact
            assert any("compile=true" in note for note in assembly.notes) == (not exact)
        finally:
            probe.close()


def test_a_pixel_s_channels_lie_together_where_that_was_asked_for():
    from framework.cli.allowed import Grant
    from framework.cli.compose_config import composed
    from framework.commands.probe import Probe

    config, allowed = composed([*SYNTHETIC, "channels_last=true"], Grant(typed=False, exported=""))
    probe = Probe(config, allowed)
    try:
        model = probe.assembly.trainer(None, None, lambda: False).model
    finally:
        probe.close()
    convs = [module.weight for module in model.modules() if isinstance(module, nn.Conv2d)]
    assert convs
    assert all(weight.is_contiguous(memory_format=torch.channels_last) for weight in convs)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="needs a compiler")
def test_a_compiled_model_learns_the_same_and_is_saved_under_the_same_names():
    assert paceline("train", *SYNTHETIC, "hydra.run.dir=plain").code == 0
    done = paceline(
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


def test_where_there_is_no_compiler_one_line_says_so():
    done = paceline("train", *SYNTHETIC, "compile=true", CXX="", PATH=str(Path("empty").absolute()))
    assert done.code == 5
    assert is_one_error_line(done, "R105")
