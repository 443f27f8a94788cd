import numpy as np
import pytest
from paceline_examples.noisy_waves import noisy_waves


def _waves(item=0, seed=0, noise=0.5):
    chunks = list(noisy_waves(item, seed, length=256, num_chunks=8, noise=noise))
    return {name: np.stack([chunk[name] for chunk in chunks]) for name in ("noisy", "clean")}


def test_a_recording_is_cut_into_chunks():
    waves = _waves()
    assert waves["noisy"].shape == waves["clean"].shape == (8, 1, 256)
    assert waves["noisy"].dtype == waves["clean"].dtype == np.float32


def test_tone_and_noise_are_as_loud_as_is_said():
    waves = _waves()
    assert np.mean(waves["clean"] ** 2) == pytest.approx(0.5, rel=1e-3)
    assert np.std(waves["noisy"] - waves["clean"]) == pytest.approx(0.5, rel=0.1)


def test_the_same_recording_is_the_same_and_others_are_not():
    assert np.array_equal(_waves()["noisy"], _waves()["noisy"])
    assert not np.array_equal(_waves()["clean"], _waves(item=1)["clean"])
    assert not np.array_equal(_waves()["clean"], _waves(seed=1)["clean"])
