import math

import numpy as np
import pytest
import torch

from framework.augment.spectrogram import FLOOR, Spectrogram, mel_filters

RATE, WINDOW, HOP, BANDS = 16000, 400, 160, 40


def spectrogram(sounds, lengths=None, **options):
    options = {"rate": RATE, "window": WINDOW, "hop": HOP, "bands": BANDS, **options}
    batch = {"audio": sounds}
    if lengths is not None:
        batch["audio_length"] = torch.tensor(lengths)
    return Spectrogram("audio", **options)(batch, None)


def slow_filters(rate, window, bands, low, high):
    """Return the mel filters by librosa's formula, a number at a time, on Slaney's scale."""

    def mel(hertz):
        if hertz < 1000:
            return hertz / (200 / 3)
        return 15 + math.log(hertz / 1000) / (math.log(6.4) / 27)

    def hertz(number):
        """Invert the scale by bisection."""
        lower, upper = 0.0, rate
        for _ in range(80):
            middle = (lower + upper) / 2
            lower, upper = (middle, upper) if mel(middle) < number else (lower, middle)
        return lower

    step = (mel(high) - mel(low)) / (bands + 1)
    edges = [hertz(mel(low) + step * number) for number in range(bands + 2)]
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


@pytest.mark.parametrize(
    "case", [(16000, 400, 40, 0, 8000), (22050, 2048, 128, 20, 9000)], ids=["16 kHz", "22 kHz"]
)
def test_the_filters_are_those_of_librosa(case):
    assert np.allclose(mel_filters(*case).numpy(), slow_filters(*case), atol=1e-7)


@pytest.mark.parametrize("length", [100, 1600, 4001])
def test_a_sound_becomes_the_spectrogram_of_a_discrete_fourier_transform(length):
    sound = np.random.default_rng(0).normal(0, 0.1, (2, length)).astype(np.float32)
    given = torch.from_numpy(sound.copy())
    result = spectrogram(given)["audio"].numpy()
    padded = np.pad(sound[1].astype(np.float64), WINDOW // 2)
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)
    bank = slow_filters(RATE, WINDOW, BANDS, 0, RATE / 2)
    starts = range(0, length + 1, HOP)
    frames = [bank @ np.abs(np.fft.rfft(padded[at : at + WINDOW] * hann)) ** 2 for at in starts]
    expected = np.log(np.maximum(np.stack(frames, 1), FLOOR))
    assert result.shape == (2, *expected.shape)
    assert np.allclose(result[1], expected, atol=1e-3)
    assert np.array_equal(given, sound)


def test_channels_come_before_bands_and_lengths_become_frames():
    stereo = torch.randn(3, 1000, 2)
    result = spectrogram(stereo, [1000, 160, 159])
    assert result["audio"].shape == (3, 2, BANDS, 7)
    assert result["audio_length"].tolist() == [7, 2, 1]
    right = spectrogram(stereo[..., 1])["audio"]
    assert torch.allclose(result["audio"][:, 1], right, atol=1e-5)


@pytest.mark.parametrize(
    "sounds", [torch.zeros(2, 9, dtype=torch.int16), torch.zeros(9)], ids=["integers", "one sound"]
)
def test_values_that_are_no_batch_of_waveforms_are_refused(sounds):
    with pytest.raises(ValueError, match=r"float sounds \[B, T\]"):
        spectrogram(sounds)
