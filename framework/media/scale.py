"""Cuts and scales pixels by one filter, for reading and packing alike; boxes and points follow.

Shrinking is antialiased by a triangle filter over the source pixels under each result, like
bilinear resizing in Pillow and torchvision (within 1 level). Growing is linear. The filter is
``native/scale.c``, or torch's and OpenCV's without a compiler.

Slices of JPEGs are decoded in C, too, by TurboJPEG 3, which comes with the extra ``turbo`` or the
system: beside a GPU, a thread that holds Python's lock stops the thread that launches the kernels.
What C does not read is left to ``decode.window_pixels``.
"""

import ctypes
import importlib.util
import threading
from collections.abc import Sequence
from ctypes.util import find_library
from functools import cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from framework.contracts.data import MIRRORED, TURNED, UPSIDE_DOWN
from framework.contracts.records import IGNORE, Placed
from framework.media.header import MAX_PIXELS
from framework.system.native import find

cv2.setNumThreads(0)  # our workers run in parallel; OpenCV's own threads would compete with them
LINEAR, ANTIALIASED, NEAREST = range(3)  # native/scale.h
SCALING = ctypes.c_int64 * 4  # native/scale.h
JOB, LAYOUT = ctypes.c_int64 * 10, ctypes.c_int64 * 5  # native/images.c
BYTES: Any = ctypes.c_char * 0  # ``from_buffer`` takes a quarter of the time of ``ctypes.data``
IS_PORTABLE = False  # tests do without AVX2, which gives the same bits
# Columns of a slice of files, int64 [n, 18], which C reads and writes: ``Image`` of
# ``native/images.c``. One table, because it takes Python a while to make an array.
STORED = slice(2, 6)  # height, width, channels and orientation
SIZES = slice(6, 8)  # height and width of the upright image, unless it is left
LEFT = 8  # whether Python must read it
NANOSECONDS = 9  # what it took
DECOMPRESS = 1  # turbojpeg.h
# In the order in which native/images.c has them.
FUNCTIONS = (
    *("tj3Init", "tj3Get", "tj3DecompressHeader", "tj3SetScalingFactor"),
    *("tj3SetCroppingRegion", "tj3Decompress8", "tj3Destroy"),
)


def scale(image: np.ndarray, size: tuple[int, int], antialias: bool) -> np.ndarray:
    """Scale uint8 [H, W, C] to [*size, C]; without ``antialias``, linear between four pixels."""
    if image.shape[:2] == size:
        return image
    out = np.empty((*size, image.shape[2]), np.uint8)
    how = ANTIALIASED if antialias else LINEAR
    scale_into(image, how, 0, out, interleaved=True)
    return out


def scale_labels(planes: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Scale a label map [C, H, W] to [C, *size]: each result is the pixel under its center."""
    for axis, new in enumerate(size, start=1):
        nearest = (2 * np.arange(new) + 1) * planes.shape[axis] // (2 * new)
        planes = planes.take(nearest, axis=axis)
    return planes


def scale_into(
    pixels: np.ndarray, how: int, flip: int, out: np.ndarray, interleaved: bool = False
) -> None:
    """Scale an image, uint8 [H, W, C] with any strides, into ``out``, which says the size.

    ``how`` is LINEAR, ANTIALIASED or NEAREST, ``flip`` is as ``Transform.windows`` returns it, and
    ``out`` uint8 [C, h, w] or, if ``interleaved``, [h, w, C].
    """
    size = out.shape[:2] if interleaved else out.shape[1:]
    scale_jobs, channels = find("paceline_scale_windows"), pixels.shape[2]
    if scale_jobs is not None and channels in (1, 3):
        # The channels of a pixel, or the pixels of a row, have to be neighbors.
        if pixels.strides[1] != 1 and pixels.strides[1:] != (channels, 1):
            pixels = np.ascontiguousarray(pixels)
        height, width = pixels.shape[:2]
        job = JOB(pixels.ctypes.data, 0, 0, height, width, flip, out.ctypes.data, *size)
        layout = LAYOUT(height, width, *pixels.strides)
        if not scale_jobs(job, 1, layout, SCALING(channels, how, interleaved, IS_PORTABLE)):
            return
    if flip & TURNED:
        pixels = pixels.swapaxes(0, 1)
    image = np.ascontiguousarray(pixels)
    # Without the compiled functions: at most 1 level away from theirs.
    if how == NEAREST:
        image = scale_labels(pixels.transpose(2, 0, 1), size).transpose(1, 2, 0)
    elif how == ANTIALIASED and not (size[0] >= image.shape[0] and size[1] >= image.shape[1]):
        # With these strides torch sees a channels-last tensor and takes its fastest kernel.
        batch = torch.from_numpy(image).unsqueeze(0).permute(0, 3, 1, 2)
        scaled = interpolate(batch, size, mode="bilinear", antialias=True)[0]
        image = scaled.permute(1, 2, 0).numpy()
    elif image.shape[:2] != size:
        image = cv2.resize(image, (size[1], size[0]), interpolation=cv2.INTER_LINEAR)
        image = image.reshape(*size, channels)
    rows, columns = (-1 if flip & code else 1 for code in (UPSIDE_DOWN, MIRRORED))
    image = image[::rows, ::columns]
    out[:] = image if interleaved else image.transpose(2, 0, 1)


def before_turn(flip: int, size: tuple[int, int]) -> tuple[int, int]:
    """Return the size of a result before its rows and columns are exchanged, or after."""
    return (size[1], size[0]) if flip & TURNED else size


def scale_windows(
    images: Any, layout: tuple[int, int, int], windows: np.ndarray, how: int, results: Any
) -> np.ndarray | None:
    """Cut and scale a slice of raw images, uint8 arrays whose axes ``layout`` names, in C.

    ``windows`` are int64 [n, 5], ``how`` is LINEAR, ANTIALIASED or NEAREST, and ``results`` are
    [C, h, w], stacked or in a list. Return the seconds of each image, float64 [n]; None if C cannot
    do all, or a window is outside.
    """
    scale_jobs = find("paceline_scale_windows")
    if scale_jobs is None or not len(windows) or images[0].shape[layout[2]] not in (1, 3):
        return None
    first = images[0]
    strides = [first.strides[axis] for axis in layout]
    others = images if type(images) is list else ()
    if any(image.strides != first.strides for image in others) or (
        strides[1] != 1 and strides[1:] != [3, 1]
    ):
        images = [np.ascontiguousarray(image) for image in images]
        strides = [images[0].strides[axis] for axis in layout]
    jobs = np.empty((len(windows), 10), np.int64)
    jobs[:, 0] = _addresses(images)
    jobs[:, 1:6] = windows
    scaling = _place_results(results, how, False, jobs[:, 6:9])
    shared = LAYOUT(first.shape[layout[0]], first.shape[layout[1]], *strides)
    if scale_jobs(BYTES.from_buffer(jobs), len(windows), shared, scaling):
        return None
    return jobs[:, 9] * 1e-9


def _place_results(results: Any, how: int, interleaved: bool, columns: np.ndarray) -> Any:
    """Write the address, height and width of results, [C, h, w] or [h, w, C], to int64 [n, 3].

    Return how C scales.
    """
    axes = slice(0, 2) if interleaved else slice(1, 3)
    columns[:, 0] = _addresses(results)
    if isinstance(results, np.ndarray):
        columns[:, 1:] = results.shape[1:][axes]
    else:
        columns[:, 1:] = [image.shape[axes] for image in results]
    return SCALING(results[0].shape[2 if interleaved else 0], how, interleaved, IS_PORTABLE)


def _addresses(arrays: Any) -> Any:
    if isinstance(arrays, Placed):
        return arrays.base + arrays.starts
    if isinstance(arrays, np.ndarray):
        address = ctypes.addressof(BYTES.from_buffer(arrays))
        return np.arange(address, address + len(arrays) * arrays.strides[0], arrays.strides[0])
    return [array.ctypes.data for array in arrays]


def read_headers(files: Sequence[Any], most_channels: int = 255) -> np.ndarray:
    """Return a table of image files, with the headers of JPEGs; others are left to Python."""
    table = np.zeros((len(files), 18), np.int64)
    if isinstance(files, Placed):
        table[:, 0], table[:, 1] = files.base + files.starts, files.lengths
    else:
        arrays = [np.frombuffer(file, np.uint8) for file in files]
        table[:, :2] = [(array.ctypes.data, array.nbytes) for array in arrays]
    read = find("paceline_image_headers")
    if read is None or turbojpeg() is None:
        table[:, LEFT] = 1
    else:
        read(BYTES.from_buffer(table), len(files), MAX_PIXELS, most_channels)
    return table


def decode_windows(
    table: np.ndarray, windows: np.ndarray, how: int, results: Any, interleaved: bool
) -> list[int]:
    """Decode, cut and scale a slice of files, as ``window_pixels`` and ``scale_into`` do.

    ``table`` is that of the files, which must stay in memory, ``windows`` are int64 [n, 5], ``how``
    is LINEAR or ANTIALIASED, and ``results`` [C, h, w] or, if ``interleaved``, [h, w, C], stacked
    or in a list. Return the places that are ``LEFT``: C has failed, or a window is not inside.
    """
    decode = find("paceline_decode_jpegs")
    if not len(table) or decode is None or turbojpeg() is None:
        return list(range(len(table)))
    table[:, 10:15] = windows
    scaling = _place_results(results, how, interleaved, table[:, 15:])
    try:
        own = _threads.decompressor
    except AttributeError:  # the first JPEG of this thread
        own = _threads.decompressor = _Decompressor()
    files = BYTES.from_buffer(table), len(table)
    num_left = decode(own.functions, ctypes.byref(own.handle), *files, scaling)
    return np.flatnonzero(table[:, LEFT]).tolist() if num_left else []


@cache
def turbojpeg() -> Any | None:
    """Return the library, or None."""
    names: list[str] = []
    spec = importlib.util.find_spec("turbojpeg")
    if spec is not None and spec.origin is not None:
        for pattern in ("turbojpeg.libs/libturbojpeg*", ".dylibs/libturbojpeg*"):
            names += sorted(map(str, Path(spec.origin).parent.glob(pattern)))
    for name in (*names, ""):
        try:  # the system's comes last, for which gcc and ld are started
            library = ctypes.CDLL(name or find_library("turbojpeg") or "libturbojpeg.so")
            library.tj3Init.restype = ctypes.c_void_p
            library.tj3Destroy.argtypes = (ctypes.c_void_p,)
            for function in FUNCTIONS:
                getattr(library, function)
        except (OSError, AttributeError):  # missing, or older than 3.0
            continue
        return library
    return None


class _Decompressor:
    """A decompressor of the library, and its functions. Each thread has its own."""

    def __init__(self) -> None:
        self._library: Any = turbojpeg()
        self.handle = ctypes.c_void_p(self._library.tj3Init(DECOMPRESS))  # C may replace it
        own = [ctypes.cast(getattr(self._library, name), ctypes.c_void_p) for name in FUNCTIONS]
        self.functions = (ctypes.c_void_p * len(own))(*(function.value for function in own))

    def __del__(self) -> None:
        self._library.tj3Destroy(self.handle)


_threads = threading.local()


def moved_boxes(boxes: Tensor, windows: Tensor, size: tuple[int, int] | None) -> Tensor:
    """Return boxes, float32 [n, 4], in the pixels of what their windows become, clipped to it.

    ``windows`` are those of their images, and ``size`` is what these are scaled to, if they are.
    """
    moved, limits = _moved(boxes.view(-1, 2, 2), windows.unsqueeze(1).expand(-1, 2, -1), size)
    moved = torch.minimum(moved.clamp_min(0), limits)
    return torch.cat([moved.amin(1), moved.amax(1)], dim=1)  # a flip exchanges left and right


def moved_points(points: Tensor, windows: Tensor, size: tuple[int, int] | None) -> Tensor:
    """Return points, float32 [n, 2 or 3], as ``moved_boxes`` does; outside, the visibility is 0."""
    moved, limits = _moved(points[:, :2], windows, size)
    outside = ((moved < 0) | (moved > limits)).any(1, keepdim=True)
    return torch.cat([moved, points[:, 2:].masked_fill(outside, 0)], dim=1)


def boxes_in_image(
    boxes: Tensor, window: Sequence[int], seen: tuple[int, int], size: tuple[int, int]
) -> Tensor:
    """Return predicted boxes, float [n, 4], in the pixels of the image of ``size``, clipped to it.

    The model saw the ``window`` (top, left, height, width) of it, scaled to the size ``seen``.
    """
    top, left, height, width = window[:4]
    scale = torch.tensor([width / seen[1], height / seen[0]] * 2)
    moved = boxes.float() * scale + torch.tensor([left, top] * 2)
    return torch.minimum(moved.clamp_min(0), torch.tensor([size[1], size[0]] * 2))


def map_in_image(numbers: np.ndarray, window: Sequence[int], size: tuple[int, int]) -> np.ndarray:
    """Return a predicted label map, integers [h, w], in the size of its image.

    Pixels outside the ``window`` that the model saw get ``IGNORE``.
    """
    top, left, height, width = window[:4]
    result = np.full(size, IGNORE, numbers.dtype)
    scaled = scale_labels(numbers[None], (height, width))[0]
    result[top : top + height, left : left + width] = scaled
    return result


def _moved(points: Tensor, windows: Tensor, size: tuple[int, int] | None) -> tuple[Tensor, Tensor]:
    """Return points [..., 2], and the (width, height) of each one's result, both float32."""
    top, left, height, width, flip = windows.unbind(-1)
    starts = torch.stack([left, top], dim=-1).float()
    sizes = torch.stack([width, height], dim=-1).float()
    is_turned = (flip & TURNED).bool().unsqueeze(-1)
    limits = torch.where(is_turned, sizes.flip(-1), sizes)
    if size is not None:
        limits = torch.tensor([size[1], size[0]], dtype=torch.float32).expand_as(sizes)
    moved = (points - starts) * (torch.where(is_turned, limits.flip(-1), limits) / sizes)
    moved = torch.where(is_turned, moved.flip(-1), moved)
    flips = torch.stack([flip & MIRRORED, flip & UPSIDE_DOWN], dim=-1).bool()
    return torch.where(flips, limits - moved, moved), limits
