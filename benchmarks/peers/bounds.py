"""What the machine can do: a thread per core in a plain loop, no loader, no batches to put together, bytes and windows ready in memory."""

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from peers.pixels import decoded, scaled
from peers.work import SIZE, Epoch, Work, random_window
from torch import Tensor


def decode_alone(work: Work) -> Epoch:
    data = _bytes(work)

    def one(number: int, window: tuple[int, ...], place: np.ndarray) -> None:
        decoded(data[number])

    return _loop(work, [(SIZE, SIZE)] * work.num_records, one)


def jpeg(work: Work) -> Epoch:
    """Decode all of it, cut, scale, flip half of them, write as planes."""
    data = _bytes(work)

    def one(number: int, window: tuple[int, ...], place: np.ndarray) -> None:
        _write(decoded(data[number]), window, number % 2 == 0, place, work.antialias)

    return _loop(work, [decoded(value).shape[:2] for value in data], one)


def raw(work: Work) -> Epoch:
    pixels = np.load(work.path("raw.npy"))

    def one(number: int, window: tuple[int, ...], place: np.ndarray) -> None:
        _write(pixels[number], window, number % 2 == 0, place, work.antialias)

    return _loop(work, [pixels.shape[1:3]] * len(pixels), one)


def memcpy(work: Work) -> Epoch:
    """D: consecutive batches, each copied whole into one buffer of its size."""
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
    one: Callable[[int, tuple[int, ...], np.ndarray], None],
) -> Epoch:
    """Threads that take the next image until none is left; the results of one batch at a time stay in memory."""
    windows = [random_window(*size) for size in sizes]
    results = torch.zeros(work.batch_size, 3, SIZE, SIZE, dtype=torch.uint8)
    places = list(results.numpy())
    pool = ThreadPoolExecutor(work.num_workers)

    def take(counter: Iterator[int]) -> None:
        while (number := next(counter)) < work.num_records:
            one(number, windows[number], places[number % work.batch_size])

    def epoch(number: int) -> Iterator[tuple[Tensor, Tensor]]:
        counter = (
            itertools.count()
        )  # its next() is one step for the interpreter: threads may share it
        for future in [pool.submit(take, counter) for _ in range(work.num_workers)]:
            future.result()
        for numbers in torch.arange(work.num_records).split(work.batch_size):
            yield results[: len(numbers)], numbers

    return epoch
