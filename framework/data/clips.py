"""The frames of the clips of a batch."""

from typing import Any

import torch
from torch import Tensor

from framework.contracts.data import CutsVideos
from framework.contracts.records import RecordStore
from framework.errors import DataError
from framework.media.frame_files import BadFrames, frames_of


def clip_frames(
    store: RecordStore,
    name: str,
    values: list[Any],
    indices: Tensor,
    transform: CutsVideos,
    numbers: Tensor | None,
) -> list[Any]:
    """Return the frames of all clips, one after another: image files, or uint8 [H, W, C].

    Args:
        store: Names the records in errors.
        name: The field.
        values: What the store gave for it.
        indices: The records: int64 [B].
        transform: Chooses the frames.
        numbers: The transform's draws, float32 [B, num_draws]; None outside training.

    Raises:
        DataError: D261 for a value that does not hold frames.
    """
    field = store.manifest.fields[name]
    videos: list[Any] = []
    for index, value in zip(indices.tolist(), values, strict=True):
        try:
            videos.append(frames_of(value, field))
        except BadFrames as error:
            what = f"{name} is not a readable video ({error})"
            raise DataError(261, store.name(index), what, "pack it again") from error
    lengths = torch.tensor([len(video) for video in videos])
    chosen = transform.frame_numbers(lengths, numbers).tolist()
    pairs = zip(videos, chosen, strict=True)
    return [video[number] for video, own in pairs for number in own]
