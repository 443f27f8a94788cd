"""One GPU kernel that cuts, mirrors and normalizes uint8 pixels, written in Triton.

For the same work, torch's operators read and write the batch four to six times. The kernel reads
each byte once and writes each result once, in the layout and the dtype that the model wants. It
gives the same numbers as the operators: product and sum round separately, and 16-bit results are
rounded from float32.

Only ``normalize`` imports this module, when a GPU gets its first batch: Triton takes half a second.
"""

# pyright: reportMissingParameterType=false, reportCallIssue=false

import triton
import triton.language as tl
from torch import Tensor, channels_last

BLOCK = 1024  # results that one program of the kernel computes


def launch(
    image: Tensor,
    tables: tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None],
    padding: int,
    reflects: bool,
    out: Tensor,
) -> None:
    """Run the kernel on the current stream.

    Args:
        image: uint8 [B, C, H, W].
        tables: Contiguous, or None: offsets (int64 [B, 2]), mirror (uint8 [B]), scale and shift
            (float32 [C]), as in ``normalize.PixelChange``.
        padding: Pixels on each side of the padded image.
        reflects: Whether these mirror the image. Otherwise they are black.
        out: The results, [B, C, H, W], contiguous or ``channels_last``: float32, bfloat16 or
            float16 if there is a scale, else uint8.
    """
    count, channels, height, width = image.shape
    size = channels * height * width
    change_pixels[(count, -(-size // BLOCK))](
        image,
        out,
        *tables,
        height,
        width,
        padding,
        *image.stride(),
        CHANNELS=channels,
        CHANNELS_LAST=channels > 1 and out.is_contiguous(memory_format=channels_last),
        REFLECTS=reflects,
        BLOCK=BLOCK,
        enable_fp_fusion=False,  # a fused product and sum would round once
    )


@triton.jit
def change_pixels(
    image,
    out,
    offsets,
    mirror,
    scale,
    shift,
    height,
    width,
    padding,
    record_stride,
    channel_stride,
    row_stride,
    column_stride,
    CHANNELS: tl.constexpr,
    CHANNELS_LAST: tl.constexpr,
    REFLECTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Compute ``BLOCK`` results of one record, in the order in which they lie in memory."""
    record = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    pixels = height * width
    exists = place < CHANNELS * pixels
    if CHANNELS_LAST:
        channel = place % CHANNELS
        pixel = place // CHANNELS
    else:
        channel = place // pixels
        pixel = place % pixels
    row = pixel // width
    column = pixel % width
    if mirror is not None:
        column = tl.where(tl.load(mirror + record) != 0, width - 1 - column, column)
    if offsets is not None:
        row = row + tl.load(offsets + 2 * record).to(tl.int32) - padding
        column = column + tl.load(offsets + 2 * record + 1).to(tl.int32) - padding
    if REFLECTS:
        row = (height - 1) - tl.abs((height - 1) - tl.abs(row))
        column = (width - 1) - tl.abs((width - 1) - tl.abs(column))
    inside = exists & (row >= 0) & (row < height) & (column >= 0) & (column < width)
    source = channel * channel_stride + row * row_stride + column * column_stride
    value = tl.load(image + record * record_stride + source, mask=inside, other=0)
    if scale is not None:
        number = value.to(tl.float32) * tl.load(scale + channel, mask=exists, other=0)
        number = number + tl.load(shift + channel, mask=exists, other=0)
        if out.dtype.element_ty == tl.bfloat16:
            # Round to the nearest, and to even between two, as torch does. Triton's interpreter
            # would cut the bits off.
            bits = number.to(tl.uint32, bitcast=True)
            bits = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
            value = bits.to(tl.uint16).to(tl.bfloat16, bitcast=True)
        else:
            value = number.to(out.dtype.element_ty)
    tl.store(out + record * (CHANNELS * pixels) + place, value, mask=exists)
