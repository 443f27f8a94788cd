"""Compare our augmentations of a batch on the host with plain torch and other libraries.

    python benchmarks/augment.py [--records 40000] [--batch 256] [--rounds 5] [--threads 2]
    python benchmarks/augment.py --color 224 [--batch 64] [--rounds 20] [--threads 2]

By default, every contestant crops, mirrors and normalizes the same batches: uint8 [3, 32, 32]
records in memory, taken in random order, become float32 NCHW. The peers are plain vectorized torch.
All contestants run in one process and take turns at every batch, so a busy machine slows all of
them alike: read the ratios. The script stops if their results differ. ``with draws`` also computes
the random numbers of each record from (seed, epoch, record), as training does. The other
contestants receive these numbers.

With ``--color SIDE``, the contestants change brightness, contrast, saturation and hue of images of
that side instead. The peers are Kornia, which takes a batch at once, and Albumentations, which
takes one image at a time and returns bytes. Both draw their own random numbers, so only our results
with and without the C function must agree.
"""

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

from framework.augment import color_jitter
from framework.augment.color_jitter import ColorJitter
from framework.augment.crop_flip import CropFlip
from framework.measure.statistics import median, quartiles
from framework.order.draws import draws
from framework.system.memory import keep_freed_memory
from framework.system.native import find

PADDING, MEAN, STD = 4, (0.491, 0.482, 0.447), (0.247, 0.243, 0.262)
SCALE = torch.tensor([1 / (255 * s) for s in STD]).view(-1, 1, 1)
SHIFT = torch.tensor([-m / s for m, s in zip(MEAN, STD, strict=True)]).view(-1, 1, 1)
CROP_FLIP = CropFlip("image", PADDING, 0.5, MEAN, STD)


def ours(image: Tensor, index: Tensor, numbers: Tensor) -> Tensor:
    return CROP_FLIP({"image": image}, numbers)["image"]


def ours_with_draws(image: Tensor, index: Tensor, numbers: Tensor) -> Tensor:
    return CROP_FLIP({"image": image}, draws(index, 0, 0, 3))["image"]


def places(image: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows and columns to take from the padded image: int64 [B, H] and [B, W]."""
    offsets = (numbers[:, :2] * (2 * PADDING + 1)).long()
    rows, columns = (offsets[:, i : i + 1] + torch.arange(image.shape[2 + i]) for i in (0, 1))
    return rows, torch.where(numbers[:, 2:] < 0.5, columns.flip(1), columns)


def plain_gather(image: Tensor, index: Tensor, numbers: Tensor) -> Tensor:
    """Crop and mirror with one ``gather`` for all channels of the padded batch, then normalize."""
    rows, columns = places(image, numbers)
    flat = (
        (rows.unsqueeze(2) * (image.shape[3] + 2 * PADDING) + columns.unsqueeze(1))
        .flatten(1)
        .unsqueeze(1)
    )
    padded = pad(image, (PADDING,) * 4).flatten(2)
    return (
        padded.gather(2, flat.expand(-1, image.shape[1], -1)).view(image.shape).to(torch.float32)
        * SCALE
        + SHIFT
    )


def plain_index(image: Tensor, index: Tensor, numbers: Tensor) -> Tensor:
    """Crop and mirror by indexing channels-last images, the usual way, then normalize."""
    rows, columns = places(image, numbers)
    padded = pad(image, (PADDING,) * 4).permute(0, 2, 3, 1).contiguous()
    image_numbers = torch.arange(len(image)).view(-1, 1, 1)
    pixels = padded[image_numbers, rows.unsqueeze(2), columns.unsqueeze(1)]
    return (
        pixels.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format) * SCALE
        + SHIFT
    )


class Padded:
    """A contestant that pads the whole data set in memory beforehand.

    It takes the rows of a batch with ``index_select``, then the columns with ``gather``.
    """

    def __init__(self, stored: Tensor) -> None:
        self.side = stored.shape[3] + 2 * PADDING
        self.rows = pad(stored, (PADDING,) * 4).reshape(-1, self.side)

    def __call__(self, image: Tensor, index: Tensor, numbers: Tensor) -> Tensor:
        rows, columns = places(image, numbers)
        first = (index.unsqueeze(1) * 3 + torch.arange(3)) * self.side
        taken = self.rows.index_select(0, (first.unsqueeze(2) + rows.unsqueeze(1)).flatten()).view(
            len(index), 3, -1, self.side
        )
        return (
            taken.gather(3, columns[:, None, None, :].expand(-1, 3, rows.shape[1], -1)) * SCALE
            + SHIFT
        )


CONTESTANTS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "plain gather": plain_gather,
    "plain indexing": plain_index,
    "crop_flip": ours,
    "crop_flip, with draws": ours_with_draws,
}


def measure(records: int, batch_size: int, rounds: int) -> dict[str, list[float]]:
    """Return the seconds per batch of each contestant. The first round warms up and is dropped."""
    stored = torch.randint(0, 256, (records, 3, 32, 32), dtype=torch.uint8)
    contestants = {**CONTESTANTS, "rows of a padded set": Padded(stored)}
    words = stored.view(records, -1).view(torch.int64)  # a record is copied eight bytes at a time
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds + 1):
        for index in torch.randperm(records).split(batch_size):
            numbers = draws(index, 0, 0, 3)
            results: list[Tensor] = []
            for name, contestant in contestants.items():
                start = time.perf_counter()
                image = words.index_select(0, index).view(torch.uint8).view(-1, 3, 32, 32)
                results.append(contestant(image, index, numbers))
                if number and len(index) == batch_size:
                    seconds[name].append(time.perf_counter() - start)
            if not all(torch.equal(result, results[0]) for result in results):
                raise SystemExit("the contestants do not give the same")
    return seconds


JITTER = (0.4, 0.4, 0.4, 0.1)


def by_operators(change: Callable[[], Tensor]) -> Tensor:
    """Return ``change()`` without the compiled C function, so that it uses torch's operators."""
    color_jitter.find = lambda _: None
    try:
        return change()
    finally:
        color_jitter.find = find


def colors(image: Tensor) -> dict[str, Callable[[], Tensor]]:
    """Return the contestants that change the colors of ``image`` (uint8 [B, 3, H, W]), by name.

    Each returns float32 [B, 3, H, W], but Albumentations returns uint8 [B, H, W, 3].
    """
    from albumentations import ColorJitter as OfAlbumentations
    from kornia.augmentation import ColorJitter as OfKornia

    numbers, ours, kornia = (
        draws(torch.arange(len(image)), 0, 0, 4),
        ColorJitter("image", *JITTER),
        OfKornia(*JITTER, p=1.0),
    )
    each = OfAlbumentations(
        *((1 - x, 1 + x) for x in JITTER[:3]), hue=(-JITTER[3], JITTER[3]), p=1.0
    )
    rows = image.permute(0, 2, 3, 1).contiguous().numpy()

    def mine() -> Tensor:
        return ours({"image": image}, numbers)["image"]

    return {
        "color_jitter": mine,
        "color_jitter, by torch's operators": lambda: by_operators(mine),
        "Kornia": lambda: kornia(image.float().mul_(1 / 255)),
        "Albumentations": lambda: torch.stack(
            [torch.from_numpy(each(image=row)["image"]) for row in rows]
        ),
    }


def measure_colors(side: int, batch_size: int, rounds: int) -> dict[str, list[float]]:
    """Return the seconds per batch of each contestant. The first round warms up and is dropped."""
    contestants = colors(torch.randint(0, 256, (batch_size, 3, side, side), dtype=torch.uint8))
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds + 1):
        results: list[Tensor] = []
        for name, contestant in contestants.items():
            start = time.perf_counter()
            results.append(contestant())
            if number:
                seconds[name].append(time.perf_counter() - start)
        if not torch.equal(results[0], results[1]):
            raise SystemExit("with and without C the numbers differ")
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in (("records", 40000), ("batch", 256), ("rounds", 5), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--color", type=int, metavar="SIDE")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    keep_freed_memory()  # as in training
    if arguments.color:
        seconds = measure_colors(arguments.color, arguments.batch, arguments.rounds)
    else:
        seconds = measure(arguments.records, arguments.batch, arguments.rounds)
    peers = [name for name in seconds if not name.startswith(("crop_flip", "color_jitter"))]
    best = min(peers, key=lambda name: median(seconds[name]))
    print(
        f"| | records/s: median (quartiles) | times {best}, batch by batch: median (quartiles) |\n"
        "| --- | --- | --- |"
    )
    for name, times in seconds.items():
        low, middle, high = quartiles(times)
        ratios = quartiles([peer / mine for peer, mine in zip(seconds[best], times, strict=True)])
        rates = [arguments.batch / s / 1000 for s in (middle, high, low)]
        rate, ratio = (
            "{:.3g} k ({:.3g}, {:.3g})".format(*rates),
            "**{1:.2f}** ({0:.2f}, {2:.2f})".format(*ratios),
        )
        print(f"| {name} | {rate} | {ratio} |")


if __name__ == "__main__":
    main()
