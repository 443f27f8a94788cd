"""Decode the sounds of a batch: whole, or a window of each."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from framework.contracts.data import CutsSounds, Transform
from framework.contracts.records import Ragged, RecordStore
from framework.errors import DataError
from framework.media.sound_file import BadSound, SoundHeader, read_sound, sound_header


def heard(
    store: RecordStore, files: Ragged, indices: Tensor, transform: Transform, numbers: Tensor | None
) -> Any:
    """Return the samples of the records at ``indices``.

    Args:
        store: Names the records in errors.
        files: The bytes of each record's file.
        indices: The records: int64 [B].
        transform: Cuts windows if it is ``CutsSounds``.
        numbers: The transform's draws, float32 [B, num_draws]; None outside training.

    Returns:
        float32 [B, samples] or [B, samples, channels] for windows, with zeros behind shorter
        sounds; else ``Ragged`` with rows of samples.

    Raises:
        DataError: D181 for a file that cannot be decoded, D180 for another number of channels.
    """
    arrays = files.arrays()
    sounds: list[np.ndarray] = []
    number = 0
    try:
        if not isinstance(transform, CutsSounds):
            for number, data in enumerate(arrays):  # noqa: B007  # for the error
                sounds.append(read_sound(data))
            _check_channels(store, indices, sounds)
            lengths = torch.tensor([len(sound) for sound in sounds], dtype=torch.int64)
            return Ragged(torch.from_numpy(np.concatenate(sounds)), lengths)
        headers: list[SoundHeader] = []
        for number, data in enumerate(arrays):  # noqa: B007
            headers.append(sound_header(data))
        lengths = torch.tensor([header.num_frames for header in headers], dtype=torch.int64)
        starts = transform.starts(lengths, numbers).tolist()
        for number, start in enumerate(starts):
            count = min(transform.samples, headers[number].num_frames - start)
            sounds.append(read_sound(arrays[number], start, count))
    except BadSound as error:
        what = f"not a readable WAV or FLAC file ({error})"
        raise DataError(181, store.name(int(indices[number])), what, "pack it again") from error
    _check_channels(store, indices, sounds)
    windows = torch.zeros(len(sounds), transform.samples, *sounds[0].shape[1:])
    for window, sound in zip(windows, sounds, strict=True):
        window[: len(sound)] = torch.from_numpy(sound)
    return windows


def _check_channels(store: RecordStore, indices: Tensor, sounds: list[np.ndarray]) -> None:
    for index, sound in zip(indices.tolist(), sounds, strict=True):
        if sound.shape[1:] != sounds[0].shape[1:]:
            what = f"its samples are {sound.shape[1:]}, another's {sounds[0].shape[1:]}"
            raise DataError(180, store.name(index), what, "pack files with as many channels")
