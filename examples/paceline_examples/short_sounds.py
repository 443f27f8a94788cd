"""Short sounds of eight kinds, as WAV files of random lengths. Use it with ``input=function``."""

import io
import wave
from collections.abc import Iterator
from typing import Any

import numpy as np

RATE = 8000  # samples a second
KINDS = ("steady", "rise", "fall", "hill", "valley", "warble", "trill", "pulse")
SECONDS = (0.2, 2.0)  # the shortest and the longest sound
TYPICAL_S = 0.6  # the median, before the longest and the shortest are clipped
SPREAD = 0.6  # standard deviation of a length's logarithm, as spoken words have
OVERTONES = 4


def short_sounds(item: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield sound ``item``: ``audio``, a WAV file of 0.2 to 2 s, and ``label``, its kind.

    The pitch of a tone with overtones follows the kind's contour. Length, pitch, loudness and noise
    are random.
    """
    rng = np.random.default_rng([seed, item])
    label = item % len(KINDS)
    seconds = np.clip(TYPICAL_S * np.exp(SPREAD * rng.standard_normal()), *SECONDS)
    samples = sound(rng, KINDS[label], int(seconds * RATE))
    yield {"audio": _wav(samples), "label": label}


def sound(rng: np.random.Generator, kind: str, length: int) -> np.ndarray:
    """Return a noisy sound between -1 and 1: float64 [length]."""
    seconds = np.arange(length) / RATE
    place = np.arange(length) / length
    swing = np.sin(2 * np.pi * (rng.uniform(8, 14) * seconds + rng.uniform()))
    octaves = rng.uniform(0.5, 1.2)
    contour = {  # the pitch in octaves
        "rise": octaves * place,
        "fall": -octaves * place,
        "hill": octaves * (1 - np.abs(2 * place - 1)),
        "valley": octaves * np.abs(2 * place - 1),
        "warble": 0.15 * swing,
        "trill": 0.2 * np.sign(swing),
    }.get(kind, np.zeros(length))
    pitch = rng.uniform(200, 600) * 2**contour
    phase = 2 * np.pi * np.cumsum(pitch) / RATE
    weights = rng.uniform(0.1, 1.0, OVERTONES) / np.arange(1, OVERTONES + 1)
    tone = np.sin(phase[:, None] * np.arange(1, OVERTONES + 1)) @ weights
    if kind == "pulse":
        tone *= swing > 0
    noisy = tone / np.abs(tone).max() + rng.uniform(0.1, 1.0) * rng.standard_normal(length)
    return rng.uniform(0.1, 0.9) * noisy / np.abs(noisy).max()


def _wav(samples: np.ndarray) -> bytes:
    """Return a WAV file with one channel of 16 bits."""
    target = io.BytesIO()
    with wave.open(target, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((32767 * samples).astype("<i2").tobytes())
    return target.getvalue()
