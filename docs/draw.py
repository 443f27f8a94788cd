"""Draw the pictures of the README and of this site: ``python docs/draw.py``.

The figures come from ``benchmarks/README.md`` and from real runs, kept in ``docs/pictures/data``:

- ``run.jsonl``: the ``metrics.jsonl`` of ``paceline train``
- ``sweep.json``: the spans and rates of ``paceline train -m recipes=photos ...``
- ``diagnosis.txt``: what ``paceline diagnose recipes=photos loader=plain workers.num=0`` prints
- ``segment.png``, ``detect.json``, ``recognize.json``: what the nets of recipes say, by
  ``docs/predictions.py``
- ``hear.json``: spectrograms, and batches with and without buckets, by the same

Each picture is 480 units wide with text of 16, so that it can be read on a phone too.
"""

import base64
import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterable
from html import escape
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from paceline_examples.drawn_lines import drawn_lines
from paceline_examples.noisy_waves import noisy_waves
from paceline_examples.photo_shapes import CLASSES, detect_scenes, segment_scenes

from framework.cli.pages import COLORS, OF_SPAN
from framework.contracts.span import SPANS
from framework.input.digits_input import DIGITS
from framework.media.decode import label_colors

HERE = Path(__file__).parent
DATA = HERE / "pictures" / "data"
WIDTH = 480
TEXT = 16
SCENES, SCENE_SIZE, MOST_SHAPES = (0, 3, 4, 7), 80, 4  # as in docs/predictions.py
OF_CLASS = ("blue", "vermillion", "green", "pink", "orange")
SANS = "system-ui, 'DejaVu Sans', Arial, sans-serif"
SPAN_TEXT = {
    "wait": "no batch is ready yet",
    "copy": "batch to the device, augment it",
    "forward": "model and loss",
    "backward": "gradients, summed over ranks",
    "optimizer": "new weights, learning rate",
    "report": "metrics, every few steps",
}


def text(x: float, y: float, words: str, color: str = "ink", **more: Any) -> str:
    """Return a line of text whose baseline is ``y``."""
    attributes = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in more.items())
    return f'<text x="{x:g}" y="{y:g}" fill="{color}"{attributes}>{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, color: str, radius: float = 0) -> str:
    """Return a filled rectangle."""
    size = f'width="{width:.4g}" height="{height:.4g}" rx="{radius:g}"'
    return f'<rect x="{x:.5g}" y="{y:.5g}" {size} fill="{color}"/>'


def frame(x: float, y: float, width: float, height: float) -> str:
    """Return an outlined rectangle."""
    size = f'width="{width:g}" height="{height:g}" rx="8"'
    return f'<rect x="{x:g}" y="{y:g}" {size} fill="none" stroke="muted" stroke-width="1.5"/>'


def line(points: Iterable[tuple[float, float]], color: str, width: float = 1.0) -> str:
    """Return a line through ``points``."""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="{width:g}"/>'


def arrow(x: float, top: float, bottom: float) -> list[str]:
    """Return an arrow that points downwards."""
    head = f"{x - 6:g},{bottom - 8:g} {x + 6:g},{bottom - 8:g} {x:g},{bottom:g}"
    return [
        line([(x, top), (x, bottom - 8)], "muted", 2),
        f'<polygon points="{head}" fill="muted"/>',
    ]


def step() -> tuple[int, list[str]]:
    """Draw the way from a record to a step, and the spans of a step."""
    parts: list[str] = []
    notes = {
        "record": ("an image and its label, in a store", "read, decode, transform (workers)"),
        "batch": ("many records, ready in advance", "handed to the Trainer"),
    }
    y = 8
    for name, (note, below) in notes.items():
        parts += [frame(12, y, 110, 38), text(67, y + 25, name, text_anchor="middle")]
        parts += [text(138, y + 25, note, "muted"), *arrow(67, y + 40, y + 78)]
        parts.append(text(138, y + 66, below, "muted"))
        y += 80
    parts.append(frame(4, y, WIDTH - 8, 52 + 36 * len(SPANS)))
    parts.append(text(18, y + 28, "step", font_weight="bold"))
    parts.append(text(138, y + 28, "each moment belongs to one span", "muted"))
    for number, name in enumerate(SPANS):
        top = y + 44 + 36 * number
        parts.append(box(18, top, 10, 28, OF_SPAN[name], 3))
        parts += [text(38, top + 20, name), text(138, top + 20, SPAN_TEXT[name], "muted")]
    return y + 60 + 36 * len(SPANS), parts


def rate_of(cell: str) -> float:
    """Return the number in a table's cell, such as ``1,659`` or ``4.95 M``."""
    number, _, factor = cell.replace(",", "").partition(" ")
    return float(number) * {"": 1.0, "k": 1e3, "M": 1e6}[factor]


def reading() -> tuple[int, list[str]]:
    """Draw how fast records are read, beside the best peer, from the table of the benchmarks."""
    names = {
        "A antialiased": "full-size JPEGs, random crop to 224",
        "B antialiased": "JPEGs of 256 pixels, random crop to 224",
        "C antialiased": "raw pixels, 256 x 256, random crop to 224",
        "D": "raw pixels, 32 x 32, shuffled",
        "E": "raw pixels, 32 x 32, crop, mirror, normalize",
    }
    table = (HERE.parent / "benchmarks" / "README.md").read_text()
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in table.splitlines()]
    cells = {row[0]: row for row in rows if len(row) == 8}
    parts = [text(0, 18, "records per second, two cores, no GPU", "muted")]
    y = 46
    for key, name in names.items():
        peer = re.match(r"(.+?) ([\d,.]+(?: [kM])?)(?:;|$)", cells[key][5])
        assert peer is not None, cells[key][5]
        parts.append(text(0, y, name, font_weight="bold"))
        longest = rate_of(cells[key][1])
        for who, rate, color in (("Paceline", cells[key][1], "blue"), (*peer.groups(), "gray")):
            y += 24
            parts.append(text(0, y, who))
            parts.append(text(WIDTH, y, rate, text_anchor="end"))
            parts.append(box(0, y + 7, WIDTH * rate_of(rate) / longest, 9, color, 2))
            y += 14
        y += 34
    return y - 30, parts


class Axes:
    """A panel with ``x`` and ``y`` scales that start at zero."""

    def __init__(self, top: float, height: float, x_most: float, y_most: float) -> None:
        self.left = 52.0
        self.top = top
        self.height = height
        self.x_most = x_most
        self.y_most = y_most

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Return the place of a point."""
        width = WIDTH - self.left - 6
        bottom = self.top + self.height
        return self.left + width * x / self.x_most, bottom - self.height * y / self.y_most

    def grid(self, title: str, x_ticks: Iterable[float], y_ticks: Iterable[float]) -> list[str]:
        """Return the title, the ticks and their lines."""
        parts = [text(0, self.top - 16, title, font_weight="bold")]
        for tick in y_ticks:
            x, y = self.at(0, tick)
            parts.append(line([(x, y), (WIDTH - 6, y)], "grid"))
            parts.append(text(x - 8, y + 5, f"{tick:g}", "muted", text_anchor="end"))
        for tick in x_ticks:
            x, y = self.at(tick, 0)
            parts.append(text(x, y + 22, f"{tick:g} s", "muted", text_anchor="middle"))
        return parts


def run() -> tuple[int, list[str]]:
    """Draw the loss and the spans of a real run over its seconds."""
    lines = [json.loads(row) for row in (DATA / "run.jsonl").read_text().splitlines()]
    steps, now = 0, 0.0
    spans: list[tuple[float, float, dict[str, float]]] = []
    losses: dict[str, list[tuple[float, float]]] = {"train": [], "val": []}
    for report in lines:
        if report["split"] == "train":
            ms = {name: 1000 * report[f"{name}_s"] for name in SPANS}
            start, now = now, now + (report["step"] - steps) * sum(ms.values()) / 1000
            steps = report["step"]
            spans.append((start, now, ms))
        losses[report["split"]].append((now, report["loss"]))

    above = Axes(34, 130, now, 2.0)
    parts = above.grid("loss", (), (0, 1, 2))
    for split, color in (("train", "gray"), ("val", "blue")):
        parts.append(line((above.at(*point) for point in losses[split]), color, 2.5))
    parts.append(text(WIDTH - 170, 70, "training", "muted"))
    parts.append(text(WIDTH - 80, 70, "validation", "blue"))

    most = max(sum(ms.values()) for _, _, ms in spans)
    below = Axes(222, 190, now, most)
    parts += below.grid("ms per step", range(int(now) + 1), range(0, int(most) + 1, 20))
    for start, end, ms in spans:
        total = 0.0
        for name in SPANS:
            left, y = below.at(start, total + ms[name])
            right, bottom = below.at(end, total)
            parts.append(box(left, y, right - left, bottom - y, OF_SPAN[name]))
            total += ms[name]
    return 504, [*parts, *legend(462)]


def legend(y: float) -> list[str]:
    """Return the colors of the spans, in two rows."""
    parts: list[str] = []
    for number, name in enumerate(SPANS):
        x, top = 52 + 140 * (number % 3), y + 26 * (number // 3)
        parts += [box(x, top - 12, 14, 14, OF_SPAN[name], 2), text(x + 22, top, name)]
    return parts


def report() -> tuple[int, list[str]]:
    """Draw where the time of a step went in each run of a real sweep."""
    parts = [text(0, 18, "share of the step, by span", "muted")]
    y = 48
    for entry in json.loads((DATA / "sweep.json").read_text()):
        total = sum(entry["spans_ms"].values())
        waiting = f"waits {entry['spans_ms']['wait'] / total:.0%}"
        parts.append(text(0, y, entry["name"]))
        parts.append(text(WIDTH, y, waiting, text_anchor="end", font_weight="bold"))
        x = 0.0
        for name in SPANS:
            width = WIDTH * entry["spans_ms"].get(name, 0.0) / total
            parts.append(box(x, y + 8, width, 22, OF_SPAN[name]))
            x += width
        y += 60
    return y + 40, [*parts, *legend(y)]


def diagnosis() -> tuple[int, list[str]]:
    """Draw what ``paceline diagnose`` printed: the verdict, the rate of each part, the advice."""
    rows = (DATA / "diagnosis.txt").read_text().splitlines()
    verdict = textwrap.wrap(rows[0], 50)
    parts = [
        text(0, 18 + 22 * number, row, font_weight="bold") for number, row in enumerate(verdict)
    ]
    y = 18 + 22 * len(verdict) + 12
    measured = [[cell.strip() for cell in row.split("│")[1:-1]] for row in rows if "│" in row]
    rates = {name: float(rate.replace(",", "")) for name, rate, *_ in measured if rate != "-"}
    parts.append(text(0, y, "records per second", "muted"))
    most = 2 * rates["computing"]  # reading is far faster, and its bar is cut there
    for name, rate in rates.items():
        y += 24
        color = "vermillion" if name == "the whole" else "blue"
        parts.append(text(0, y, name))
        parts.append(text(WIDTH, y, f"{rate:,.0f}", text_anchor="end"))
        parts.append(box(236, y - 12, 172 * min(1.0, rate / most), 13, color, 2))
    first = next(number for number, row in enumerate(rows) if row.startswith("1. "))
    y += 14
    for row in textwrap.wrap(rows[first], 54):
        y += 24
        parts.append(text(0, y, row, font_weight="bold"))
    for row in rows[first + 1 : first + 3]:
        for piece in textwrap.wrap(row.strip(), 58):
            y += 22
            parts.append(text(0, y, piece, "muted"))
    return y + 10, parts


def recipes() -> tuple[int, list[str]]:
    """Draw records of two recipes: digits, and a wave with and without noise."""
    parts = [text(0, 18, "recipes=digits", font_weight="bold")]
    for number, pixels in enumerate(np.load(DIGITS)["image"][:8]):
        for row, column in zip(*np.nonzero(pixels > 3), strict=True):
            shade = "ink" if pixels[row, column] > 9 else "muted"
            parts.append(box(60 * number + 6 * column, 34 + 6 * row, 6, 6, shade))
    parts.append(text(0, 118, "recipes=denoise: noisy input, clean target", font_weight="bold"))
    wave = next(noisy_waves(0, seed=0, length=240, num_chunks=1, noise=0.5))
    for name, color, width in (("noisy", "gray", 1), ("clean", "vermillion", 2.5)):
        points = ((2 * x, 190 - 26 * y) for x, y in enumerate(wave[name][0].tolist()))
        parts.append(line(points, color, width))
    return 260, parts


def photo(x: float, y: float, side: float, image: np.ndarray) -> str:
    """Return a square image, RGB [H, W, 3]: a JPEG, or a PNG if it has few colors."""
    few = len(np.unique(image.reshape(-1, 3), axis=0)) < 16
    kind, options = ("png", []) if few else ("jpeg", [cv2.IMWRITE_JPEG_QUALITY, 90])
    data = cv2.imencode(f".{kind}", np.ascontiguousarray(image[..., ::-1]), options)[1]
    url = f"data:image/{kind};base64,{base64.b64encode(data.tobytes()).decode()}"
    size = f'width="{side:g}" height="{side:g}"'
    return f'<image x="{x:g}" y="{y:g}" {size} image-rendering="pixelated" href="{url}"/>'


def segment() -> tuple[int, list[str]]:
    """Draw scenes, their label maps, and those of a trained net."""
    scenes = [next(segment_scenes(item, "val", SCENE_SIZE, MOST_SHAPES)) for item in SCENES]
    guesses = np.split(cv2.imread(str(DATA / "segment.png"), cv2.IMREAD_GRAYSCALE), len(SCENES))
    colors = label_colors()
    rows = {
        "image": [scene["image"] for scene in scenes],
        "mask (gray: no class)": [colors[scene["mask"]] for scene in scenes],
        "recipes=segment": [colors[guess] for guess in guesses],
    }
    parts: list[str] = []
    y = 18
    for name, images in rows.items():
        parts.append(text(0, y, name, font_weight="bold"))
        parts += [photo(122 * column, y + 10, 114, image) for column, image in enumerate(images)]
        y += 156
    return y - 24, parts


def detect() -> tuple[int, list[str]]:
    """Draw scenes with their boxes, and with those of a trained net."""
    scenes = [next(detect_scenes(item, "val", SCENE_SIZE, MOST_SHAPES)) for item in SCENES]
    truths = [
        [
            {"box": corners, "label": label}
            for corners, label in zip(scene["boxes"], scene["label"], strict=True)
        ]
        for scene in scenes
    ]
    guesses = json.loads((DATA / "detect.json").read_text())
    parts: list[str] = []
    y = 18
    for name, rows in {"boxes": truths, "recipes=detect": guesses}.items():
        parts.append(text(0, y, name, font_weight="bold"))
        for column, (scene, row) in enumerate(zip(scenes, rows, strict=True)):
            parts.append(photo(122 * column, y + 10, 114, scene["image"]))
            parts += [outline(122 * column, y + 10, 114 / SCENE_SIZE, entry) for entry in row]
        y += 156
    for number, name in enumerate(CLASSES):
        x = 96 * number
        parts += [box(x, y - 18, 14, 14, OF_CLASS[number], 2), text(x + 20, y - 6, name)]
    return y, parts


def outline(x: float, y: float, scale: float, entry: dict[str, Any]) -> str:
    """Return the outline of a box ``entry["box"]`` of an image at (x, y), in its class's color."""
    left, top, right, bottom = (scale * float(side) for side in entry["box"])
    place = f'x="{x + left:.1f}" y="{y + top:.1f}"'
    size = f'width="{right - left:.1f}" height="{bottom - top:.1f}"'
    color = OF_CLASS[entry["label"]]
    return f'<rect {place} {size} fill="none" stroke="{color}" stroke-width="3"/>'


def gray(x: float, y: float, width: float, height: float, png: bytes) -> str:
    """Return a PNG, stretched to a size."""
    url = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    size = f'width="{width:g}" height="{height:g}" preserveAspectRatio="none"'
    return f'<image x="{x:g}" y="{y:g}" {size} href="{url}"/>'


def recognize() -> tuple[int, list[str]]:
    """Draw lines of text, and what a trained net reads."""
    parts = [text(0, 18, "image", font_weight="bold")]
    parts.append(text(268, 18, "recipes=recognize", font_weight="bold"))
    y = 32
    for item, read in json.loads((DATA / "recognize.json").read_text()).items():
        record = next(drawn_lines(int(item), seed=1, max_words=4))
        picture = np.ascontiguousarray(record["image"].T)
        png = cv2.imencode(".png", picture)[1].tobytes()
        parts.append(gray(0, y, picture.shape[1], picture.shape[0], png))
        color = "ink" if read == record["text"] else "vermillion"
        parts.append(text(268, y + 22, read, color, font_family="monospace"))
        y += 42
    return y, parts


def hear() -> tuple[int, list[str]]:
    """Draw spectrograms of sounds, and the lengths of sounds in batches of two orders."""
    kept = json.loads((DATA / "hear.json").read_text())
    parts = [text(0, 18, "recipes=hear", font_weight="bold")]
    x = 0.0
    for sound in kept["sounds"]:
        width = 0.145 * sound["ms"]
        parts.append(gray(x, 32, width, 60, base64.b64decode(sound["png"])))
        parts.append(text(x, 112, sound["kind"], "muted"))
        x += width + 20
    y = 0
    for number, order in enumerate(("full", "buckets")):
        left = 250 * number
        y = 152
        share = f"{kept[order]['padding']:.0%} padding"
        parts.append(text(left, y, f"order={order}", font_weight="bold"))
        parts.append(text(left, y + 22, share, "vermillion"))
        y += 36
        for batch in kept[order]["batches_ms"]:
            parts.append(box(left, y, 0.11 * batch[0], 2 * len(batch), "vermillion"))
            for row, milliseconds in enumerate(batch):
                parts.append(box(left, y + 2 * row, 0.11 * milliseconds, 2, "blue"))
            y += 2 * len(batch) + 8
    return y + 4, parts


PICTURES: dict[str, Callable[[], tuple[int, list[str]]]] = {
    "step": step,
    "reading": reading,
    "run": run,
    "report": report,
    "diagnosis": diagnosis,
    "recipes": recipes,
    "segment": segment,
    "detect": detect,
    "recognize": recognize,
    "hear": hear,
}
TITLES = {
    "step": "From a record to a batch to a step, and the six spans of a step",
    "reading": "Records per second beside the best peer",
    "run": "Loss and milliseconds per step over the seconds of a run",
    "report": "Where the time of a step went in the runs of a sweep",
    "diagnosis": "What paceline diagnose prints",
    "recipes": "Records of the recipes digits and denoise",
    "segment": "Scenes of the recipe segment, their label maps, and those of the trained net",
    "detect": "Scenes of the recipe detect with their boxes, and with those of the trained net",
    "recognize": "Lines of the recipe recognize, and what the trained net reads",
    "hear": "Sounds of the recipe hear, and batches of them with and without buckets",
}


def picture(name: str, dark: bool) -> str:
    """Return the SVG file of a picture, in light or dark colors."""
    height, parts = PICTURES[name]()
    head = f'xmlns="http://www.w3.org/2000/svg" viewBox="-8 -4 {WIDTH + 16} {height + 8}"'
    style = f'font-family="{SANS}" font-size="{TEXT}" role="img" xml:space="preserve"'
    paper = box(-8, -4, WIDTH + 16, height + 8, "paper", 6)
    body = "\n".join([f"<title>{escape(TITLES[name])}</title>", paper, *parts])
    svg = f"<svg {head} {style}>\n{body}\n</svg>\n"
    return re.sub(
        r'(fill|stroke)="(\w+)"',
        lambda match: f'{match[1]}="{COLORS[match[2]][dark] if match[2] in COLORS else match[2]}"',
        svg,
    )


def main(folder: Path) -> None:
    """Write every picture, light and dark, into ``folder``."""
    for name in PICTURES:
        for dark in (False, True):
            ending = "dark" if dark else "light"
            (folder / f"{name}-{ending}.svg").write_text(picture(name, dark))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "pictures")
