import math

import numpy as np
import pytest
import torch

from framework.augment.spectrogram import FLOOR, Spectrogram, mel_filters

RATE, WINDOW, HOP, BANDS = 16000, 400, 160, 40


def _augment(**options):
    return Spectrogram(
        "audio", **{"rate": RATE, "window": WINDOW, "hop": HOP, "bands": BANDS, **options}
    )


def _mel(hertz):
    """Convert hertz to Slaney's mel scale, word by word as it is defined."""
    if hertz < 1000:
        return hertz / (200 / 3)
    return 15 + math.log(hertz / 1000) / (math.log(6.4) / 27)


def _bank(rate, window, bands, low, high):
    """Return the mel filters by librosa's formula, a number at a time.

    Bisection inverts the scale.
    """

    def hertz(mel):
        lower, upper = 0.0, rate
        for _ in range(80):
            middle = (lower + upper) / 2
            lower, upper = (middle, upper) if _mel(middle) < mel else (lower, middle)
        return lower

    step = (_mel(high) - _mel(low)) / (bands + 1)
    edges = [hertz(_mel(low) + step * number) for number in range(bands + 2)]
    bank = np.zeros((bands, window // 2 + 1))
    for band in range(bands):
        begin, middle, end = edges[band : band + 3]
        for place in range(window // 2 + 1):
            frequency = place * rate / window
            if begin < frequency <= middle:
                bank[band, place] = (frequency - begin) / (middle - begin)
            elif middle < frequency < end:
                bank[band, place] = (end - frequency) / (end - middle)
        bank[band] *= 2 / (end - begin)
    return bank


def _reference(sound):
    """Return the whole log-mel spectrogram by NumPy's discrete Fourier transform, by frame."""
    padded = np.pad(sound.astype(np.float64), WINDOW // 2)
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)
    bank = _bank(RATE, WINDOW, BANDS, 0, RATE / 2)
    frames = []
    for frame in range(len(sound) // HOP + 1):
        part = padded[frame * HOP : frame * HOP + WINDOW] * hann
        frames.append(bank @ np.abs(np.fft.rfft(part)) ** 2)
    return np.log(np.maximum(np.stack(frames, 1), FLOOR))


@pytest.mark.parametrize("case", [(16000, 400, 40, 0, 8000), (22050, 2048, 128, 20, 9000)])
def test_the_filter_bank_is_librosas(case):
    assert np.allclose(mel_filters(*case).numpy(), _bank(*case), atol=1e-7)


@pytest.mark.parametrize("length", [100, 1600, 4001])
def test_a_sound_becomes_the_references_spectrogram(length):
    sound = np.random.default_rng(0).normal(0, 0.1, (2, length)).astype(np.float32)
    batch = {"audio": torch.from_numpy(sound)}
    result = _augment()(batch, None)["audio"].numpy()
    assert result.shape == (2, BANDS, length // HOP + 1)
    assert np.allclose(result[1], _reference(sound[1]), atol=1e-3)
    assert np.array_equal(batch["audio"], sound)


def test_channels_come_before_bands_and_lengths_become_frames():
    stereo = torch.randn(3, 1000, 2)
    result = _augment()({"audio": stereo, "audio_length": torch.tensor([1000, 160, 159])}, None)
    assert result["audio"].shape == (3, 2, BANDS, 7)
    assert result["audio_length"].tolist() == [7, 2, 1]
    right = _augment()({"audio": stereo[..., 1]}, None)["audio"]
    assert torch.allclose(result["audio"][:, 1], right, atol=1e-5)


def test_a_list_of_sounds_becomes_a_list():
    sounds = [torch.randn(500), torch.randn(900)]
    result = _augment()({"audio": sounds}, None)["audio"]
    assert [tuple(each.shape) for each in result] == [(BANDS, 4), (BANDS, 6)]


def test_silence_is_the_floor():
    result = _augment()({"audio": torch.zeros(1, 320)}, None)["audio"]
    assert torch.allclose(result, torch.tensor(FLOOR).log())


@pytest.mark.parametrize("sounds", [torch.zeros(2, 9, dtype=torch.int16), torch.zeros(9)])
def test_what_is_no_batch_of_waveforms_is_refused(sounds):
    with pytest.raises(ValueError, match=r"float sounds \[B, T\]"):
        _augment()({"audio": sounds}, None)


@pytest.mark.parametrize("options", [{"hop": 0}, {"high": 9000}, {"low": 8000}])
def test_options_that_make_no_spectrogram_are_refused(options):
    with pytest.raises(ValueError, match="make no spectrogram"):
        _augment(**options)
