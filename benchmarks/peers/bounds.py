"""Limits of the machine that the contestants are compared with.

A thread per core runs a plain loop without a loader. Bytes, windows and the memory of a batch are
ready beforehand, and no batches are collated.
"""

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from peers.pixels import decoded, scaled
from peers.work import SIZE, Epoch, Work, random_window
from torch import Tensor


def decode_alone(work: Work) -> Epoch:
    """Return epochs of A or B in which threads decode whole images and do nothing else."""
    data = _bytes(work)

    def handle(number: int, window: tuple[int, ...], place: np.ndarray) -> None:
        decoded(data[number])

    return _loop(work, [(SIZE, SIZE)] * work.num_records, handle)


def jpeg(work: Work) -> Epoch:
    """Return epochs of A or B in which threads decode whole images, then cut and scale them.

    Every second image is flipped. Results are planes.
    """
    data = _bytes(work)

    def handle(number: int, window: tuple[int, ...], place: np.ndarray) -> None:
        _write(decoded(data[number]), window, number % 2 == 0, place, work.antialias)

    return _loop(work, [decoded(value).shape[:2] for value in data], handle)


def raw(work: Work) -> Epoch:
    """Return epochs of C in which threads cut and scale images.

    Every second image is flipped. Results are planes.
    """
    pixels = np.load(work.path("raw.npy"))

    def handle(number: int, window: tuple[int, ...], place: np.ndarray) -> None:
        _write(pixels[number], window, number % 2 == 0, place, work.antialias)

    return _loop(work, [pixels.shape[1:3]] * len(pixels), handle)


def memcpy(work: Work) -> Epoch:
    """Return epochs of D that copy consecutive batches whole, all into the same buffer."""
    pixels = torch.from_numpy(np.load(work.path("raw.npy"))).permute(0, 3, 1, 2).contiguous()
    numbers = torch.arange(work.num_records)
    buffer = torch.empty_like(pixels[: work.batch_size])

    def epoch(number: int) -> Iterator[tuple[Tensor, Tensor]]:
        for batch, places in zip(
            pixels.split(work.batch_size), numbers.split(work.batch_size), strict=True
        ):
            yield buffer[: len(batch)].copy_(batch), places

    return epoch


def _bytes(work: Work) -> list[bytes]:
    return [open(path, "rb").read() for path in work.files()]


def _write(
    image: np.ndarray, window: tuple[int, ...], flip: bool, place: np.ndarray, antialias: bool
) -> None:
    top, left, height, width = window
    part = scaled(image[top : top + height, left : left + width], antialias)
    np.copyto(place, (part[:, ::-1] if flip else part).transpose(2, 0, 1))


def _loop(
    work: Work,
    sizes: list[tuple[int, int]],
    handle: Callable[[int, tuple[int, ...], np.ndarray], None],
) -> Epoch:
    """Return epochs in which threads take the next image until none is left.

    Results go to the memory of a single batch, so later images overwrite earlier ones.

    Args:
        work: The workload.
        sizes: Height and width of every image, to draw its window.
        handle: What a thread does to an image: its number, its window, the memory of its result.
    """
    windows = [random_window(*size) for size in sizes]
    results = torch.zeros(work.batch_size, 3, SIZE, SIZE, dtype=torch.uint8)
    places = list(results.numpy())
    pool = ThreadPoolExecutor(work.num_workers)

    def take(counter: Iterator[int]) -> None:
        while (number := next(counter)) < work.num_records:
            handle(number, windows[number], places[number % work.batch_size])

    def epoch(number: int) -> Iterator[tuple[Tensor, Tensor]]:
        # Threads may share it: its next() is a single step of the interpreter.
        counter = itertools.count()
        for future in [pool.submit(take, counter) for _ in range(work.num_workers)]:
            future.result()
        for numbers in torch.arange(work.num_records).split(work.batch_size):
            yield results[: len(numbers)], numbers

    return epoch
