"""SPDL: a pipeline of threads with FFmpeg's decoder, crop and scaler.

The scaler (bilinear, of swscale) averages when it shrinks, as Pillow's does.
"""

import random
from collections.abc import Iterator
from typing import Any

import spdl.io
import torch
from peers.work import FLIP, SIZE, Epoch, Work, random_window
from spdl.pipeline import PipelineBuilder
from torch import Tensor


def jpeg(work: Work) -> Epoch:
    files = work.files()

    def decoded(number: int) -> tuple[Any, int]:
        packets = spdl.io.demux_image(files[number])
        top, left, height, width = random_window(packets.codec.height, packets.codec.width)
        steps = [
            f"crop={width}:{height}:{left}:{top}",
            f"scale={SIZE}:{SIZE}:flags=bilinear",
            "format=pix_fmts=rgb24",
        ]
        steps += ["hflip"] * (random.random() < FLIP)
        return spdl.io.decode_packets(packets, filter_desc=",".join(steps)), number

    def collated(items: list[tuple[Any, int]]) -> tuple[Tensor, Tensor]:
        images = spdl.io.to_torch(spdl.io.convert_frames([frames for frames, _ in items]))
        return images.permute(0, 3, 1, 2).contiguous(), torch.tensor(
            [number for _, number in items]
        )

    def epoch(_: int) -> Iterator[tuple[Tensor, Tensor]]:
        builder = PipelineBuilder().add_source(torch.randperm(work.num_records).tolist())
        builder = (
            builder.pipe(decoded, concurrency=work.num_workers)
            .aggregate(work.batch_size)
            .pipe(collated)
            .add_sink(3)
        )
        pipeline = builder.build(num_threads=work.num_workers + 1)  # one more for collating
        with pipeline.auto_stop():
            yield from pipeline.get_iterator(timeout=60)

    return epoch
