"""Waveforms with and without noise: chunks of gliding tones. Use it with ``input=function``."""

from collections.abc import Iterator
from typing import Any

import numpy as np

RATE = 8000  # samples a second
OVERTONES = 4


def noisy_waves(
    item: int, seed: int, length: int, num_chunks: int, noise: float
) -> Iterator[dict[str, Any]]:
    """Yield the chunks of recording ``item``: fields ``noisy`` and ``clean``, float32 [1, length].

    A clean recording is a tone with overtones, whose pitch glides and whose loudness swells, of
    variance 1/2. White noise of standard deviation ``noise`` is added to it.
    """
    rng = np.random.default_rng([seed, item])
    clean = _tone(rng, length * num_chunks)
    noisy = clean + noise * rng.standard_normal(len(clean))
    for start in range(0, len(clean), length):
        chunk = slice(start, start + length)
        yield {
            "noisy": noisy[None, chunk].astype(np.float32),
            "clean": clean[None, chunk].astype(np.float32),
        }


def _tone(rng: np.random.Generator, num_samples: int) -> np.ndarray:
    """Return a tone of mean square 1/2: float64 [num_samples]."""
    seconds = np.arange(num_samples) / RATE
    pitch = rng.uniform(80, 320) * 2 ** (
        0.5 * np.sin(2 * np.pi * rng.uniform(0.2, 1.0) * seconds + rng.uniform(0, 6))
    )
    phase = 2 * np.pi * np.cumsum(pitch) / RATE
    weights = rng.uniform(0.2, 1.0, OVERTONES) / np.arange(1, OVERTONES + 1)
    wave = sum(
        weight * np.sin((number + 1) * phase + rng.uniform(0, 6))
        for number, weight in enumerate(weights)
    )
    wave = np.asarray(wave) * (0.6 + 0.4 * np.sin(2 * np.pi * rng.uniform(0.5, 3.0) * seconds))
    return wave / np.sqrt(2 * np.mean(wave**2))
