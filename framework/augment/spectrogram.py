"""Waveforms become log-mel spectrograms, on the device.

Source: scale, triangles and areas are Slaney's (Auditory Toolbox, 1998), as in librosa.
"""

import math
from typing import Any, final

import torch
from torch import Tensor

from framework.augment.normalize import Fields, fields_of
from framework.contracts.batch import Batch

FLOOR = 1e-10  # of a power, before its logarithm
LINEAR_HZ = 1000.0  # below, the mel scale is linear
MELS_PER_HZ = 3 / 200
OCTAVE = math.log(6.4) / 27  # a mel above LINEAR_HZ, as a logarithm of frequencies


@final
class Spectrogram:
    """The logarithm of the power in bands of the mel scale.

    [B, T] becomes [B, bands, frames], [B, T, C] becomes [B, C, bands, frames]. There are T // hop +
    1 frames, and a frame's middle is at a multiple of ``hop``; zeros surround a sound.
    ``<field>_length`` becomes frames, too. A list of sounds becomes a list.

    ``rate`` is in samples per second. ``window`` (of Hann) and ``hop`` are the samples of a frame,
    and between frames. The ``bands`` lie between ``low`` and ``high`` Hz; None: half the rate.
    """

    num_draws = 0

    def __init__(
        self,
        field: Fields,
        rate: int,
        window: int,
        hop: int,
        bands: int,
        low: float = 0.0,
        high: float | None = None,
    ) -> None:
        high = rate / 2 if high is None else high
        if min(rate, window, hop, bands) < 1 or not 0 <= low < high <= rate / 2:
            what = f"rate = {rate}, window = {window}, hop = {hop}, bands = {bands}"
            raise ValueError(f"{what}, low = {low}, high = {high} make no spectrogram")
        self.fields = fields_of(field)
        self.window, self.hop = window, hop
        tables = mel_filters(rate, window, bands, low, high), torch.hann_window(window)
        self._tables = {torch.device("cpu"): tables}

    def __call__(self, batch: Batch, draws: Tensor | None) -> Batch:
        result = dict(batch)
        for name in self.fields:
            sounds = result[name]
            if isinstance(sounds, list):
                result[name] = [self._spectrogram(sound[None])[0] for sound in sounds]
            else:
                result[name] = self._spectrogram(sounds)
            length = f"{name}_length"
            if length in result:
                result[length] = result[length] // self.hop + 1
        return result

    def _spectrogram(self, sounds: Any) -> Tensor:
        if not sounds.is_floating_point() or sounds.is_nested or sounds.dim() not in (2, 3):
            what = "a spectrogram is made of float sounds [B, T] or [B, T, C]"
            raise ValueError(f"{what}, not {sounds.dtype} of {sounds.dim()} dimensions")
        if sounds.device not in self._tables:
            tables = self._tables[torch.device("cpu")]
            self._tables[sounds.device] = tables[0].to(sounds.device), tables[1].to(sounds.device)
        filters, window = self._tables[sounds.device]
        planes = sounds.float()
        if planes.dim() == 3:
            planes = planes.transpose(1, 2)
        flat = planes.reshape(-1, planes.shape[-1])
        waves = torch.stft(
            flat, self.window, self.hop, window=window, pad_mode="constant", return_complex=True
        )
        power = waves.real.square() + waves.imag.square()
        mels = (filters @ power).clamp_(min=FLOOR).log_()
        return mels.view(*planes.shape[:-1], *mels.shape[1:])


def mel_filters(rate: int, window: int, bands: int, low: float, high: float) -> Tensor:
    """Return triangles of area 1 (in Hz) over a transform: float32 [bands, window // 2 + 1]."""
    mels = torch.linspace(_mel(low), _mel(high), bands + 2, dtype=torch.float64)
    above = (mels - LINEAR_HZ * MELS_PER_HZ).clamp(min=0)
    edges = torch.where(above > 0, LINEAR_HZ * (above * OCTAVE).exp(), mels / MELS_PER_HZ)  # in Hz
    frequencies = torch.arange(window // 2 + 1, dtype=torch.float64) * (rate / window)
    begin, middle, end = (edges[start : start + bands, None] for start in range(3))
    rising = (frequencies - begin) / (middle - begin)
    falling = (end - frequencies) / (end - middle)
    return (torch.minimum(rising, falling).clamp(min=0) * (2 / (end - begin))).float()


def _mel(hertz: float) -> float:
    if hertz < LINEAR_HZ:
        return hertz * MELS_PER_HZ
    return LINEAR_HZ * MELS_PER_HZ + math.log(hertz / LINEAR_HZ) / OCTAVE
