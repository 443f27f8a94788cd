"""What choices on a GPU must not change, by the command itself, each beside a run without it."""

from pathlib import Path

import pytest
import torch

from tests.cli.command import losses, started, write_linear
from tests.test_recipes import tiny_cifar

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")]
DEVICE = "cuda"
SHORT = ["epochs=1", "report_every=1", "sink=[jsonl]"]  # 12 steps


@pytest.fixture(autouse=True)
def linear(tmp_path):
    write_linear(tmp_path / "my")


def trained(name, *words):
    """Train. Return the losses and the printed messages."""
    words = [*SHORT, f"device={DEVICE}", *words, f"hydra.run.dir={name}"]
    done = started("train", *words, limit_s=300, CUBLAS_WORKSPACE_CONFIG=":4096:8")
    assert done.code == 0, done.err
    return losses(Path(name)), done.err


LINEAR_ONE = ["--config-dir", "my", "recipes=linear", "precision.tf32=false", "schedule=constant"]


@pytest.mark.timeout(600)
def test_loaders_and_stages_change_nothing():
    words = [*LINEAR_ONE, "augment=crop_flip", "augment.mean=[0.5]", "augment.std=[0.5]"]
    expected, _ = trained("plain", *words, "loader=plain")
    assert len(expected) == 12
    for number, choice in enumerate(
        (
            *(["loader=prefetch"], ["loader=stream"], ["data.stage=ram"], ["data.stage=device"]),
            ["data.stage=device", "loader=stream"],
        )
    ):
        assert trained(f"other-{number}", *words, *choice)[0] == expected, choice


@pytest.mark.timeout(600)
def test_a_resumed_run_ends_as_if_it_had_not_stopped():
    expected, _ = trained("whole", *LINEAR_ONE)
    trained("parts", *LINEAR_ONE, "max_steps=5")
    done = started("train", "resume=parts", "max_steps=null", CUBLAS_WORKSPACE_CONFIG=":4096:8")
    assert done.code == 0, done.err
    assert losses(Path("parts")) == expected


@pytest.mark.timeout(600)
def test_a_process_of_ddp_and_one_that_computes_all_virtual_ranks_learn_what_one_without_learns():
    expected, _ = trained("none", *LINEAR_ONE)
    for parallel in ("ddp", "virtual"):
        actual, _ = trained(
            parallel, *LINEAR_ONE, f"parallel={parallel}", "parallel.num_processes=1"
        )
        assert actual == pytest.approx(expected, rel=1e-5), parallel


@pytest.mark.timeout(600)
def test_a_captured_step_with_bf16_clipping_and_an_average_learns_the_same():
    words = ["precision=amp", "ema_decay=0.9", "clip_norm=1.0", "epochs=2"]
    expected, _ = trained("kernels", *words)
    actual, said = trained("graph", *words, "cuda_graph=true")
    assert "cuda_graph" not in said
    assert actual == pytest.approx(expected, rel=0.02)
    assert losses(Path("graph"), "val") == pytest.approx(losses(Path("kernels"), "val"), rel=0.02)


@pytest.mark.timeout(600)
def test_a_compiled_model_takes_a_short_batch_too():
    words = ["limit=200", "epochs=2", "precision.tf32=false"]  # 128 and 72
    expected, _ = trained("eager", *words)
    actual, _ = trained("compiled", *words, "compile=true")
    assert len(actual) == 4
    assert actual == pytest.approx(expected, rel=1e-3)


@pytest.mark.timeout(600)
def test_a_compiled_augmentation_changes_nothing():
    words = [*LINEAR_ONE, "augment=crop_flip", "augment.mean=[0.5]", "augment.std=[0.5]"]
    expected, _ = trained("operators", *words)
    for loader in ("plain", "stream"):
        actual, said = trained(f"few-{loader}", *words, f"loader={loader}", "compile=true")
        assert "augmentation" not in said
        assert actual == pytest.approx(expected, rel=1e-5)


@pytest.mark.timeout(600)
def test_overflowing_steps_of_fp16_are_left_out():
    actual, _ = trained("fp16", "precision=amp", "precision.dtype=fp16", "on_nan=skip", "epochs=3")
    expected, _ = trained("bf16", "precision=amp", "epochs=3")
    # the first steps may be skipped until the scale fits
    assert actual[-1] == pytest.approx(expected[-1], rel=0.3)


@pytest.mark.timeout(600)
def test_jpegs_decoded_there_are_those_decoded_here_within_a_tolerance():
    pytest.importorskip("nvidia.dali")
    tiny_cifar()
    crop = [
        *("recipes=cifar10", "transform=random_resized_crop", "transform.size=[32,32]"),
        *("batch_size=16", "data.val=null"),
    ]
    assert started("pack", "input.path=cifar10/train", "output.path=train.h5").code == 0
    ours, _ = trained("ours", *crop, "data=hdf5", "data.train=train.h5")
    theirs, _ = trained("theirs", *crop, "data=dali", "data.train=train.h5")
    assert theirs == pytest.approx(ours, rel=0.05)
