import io

import numpy as np
import pytest
import soundfile
from paceline_examples.short_sounds import KINDS, RATE, short_sounds, sound


def heard(item, seed=0):
    (record,) = short_sounds(item, seed)
    samples, rate = soundfile.read(io.BytesIO(record["audio"]))
    return record, samples, rate


def test_a_sound_is_a_wav_file_of_0_2_to_2_seconds():
    lengths = []
    for item in range(60):
        _, samples, rate = heard(item)
        assert (rate, samples.ndim) == (RATE, 1)
        assert 0.05 < np.abs(samples).max() < 1
        lengths.append(len(samples) / rate)
    assert 0.2 <= min(lengths) < 0.4
    assert 1.2 < max(lengths) <= 2.0


def test_every_kind_comes_equally_often():
    labels = [heard(item)[0]["label"] for item in range(16)]
    assert labels == 2 * list(range(len(KINDS)))


@pytest.mark.parametrize(("kind", "direction"), [("rise", 1), ("fall", -1), ("steady", 0)])
def test_the_pitch_follows_the_kind(kind, direction):
    samples = sound(np.random.default_rng(0), kind, RATE)
    parts = samples[: RATE // 4], samples[-RATE // 4 :]
    first, last = (np.abs(np.fft.rfft(part)).argmax() for part in parts)
    assert np.sign(round((last - first) / 20)) == direction


@pytest.mark.parametrize("other", [{"item": 8}, {"item": 0, "seed": 1}])
def test_the_same_sound_is_the_same_and_others_are_not(other):
    assert heard(0)[0] == heard(0)[0]
    assert heard(0)[0]["audio"] != heard(**other)[0]["audio"]
