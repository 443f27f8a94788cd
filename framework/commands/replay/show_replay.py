"""Show a step that was taken again: ``replay.json``, pictures, and the terminal's lines."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from framework.cli.tables import plural, print_table
from framework.commands.replay.watched_steps import WatchedPass
from framework.contracts.batch import tensors
from framework.errors import say
from framework.sink.base import write_picture
from framework.system.durable import write_json
from framework.system.run_dir import redacted

RESULT = "replay.json"
MOST_PICTURES = 64  # records in the picture
MOST_ROWS = 20  # of a table on the terminal
Summary = Mapping[str, Any]


def show_replay(summary: dict[str, Any], passes: Sequence[WatchedPass], run_dir: Path) -> None:
    """Write the files into ``replay/step_N`` of the run, and print what they tell."""
    folder = run_dir / "replay" / f"step_{summary['step']}"
    folder.mkdir(parents=True, exist_ok=True)
    order = [record.pop("place") for record in summary["records"]]
    pictures = batch_pictures(passes, order[:MOST_PICTURES])
    files = [RESULT]
    for name, images in pictures.items():
        # a field may have any name
        ending = re.sub(r"[^\w.-]", "_", f"-{name}") if len(files) > 1 else ""
        files.append(f"batch{ending}.png")
        write_picture(folder / files[-1], images)
    write_json(folder / RESULT, redacted(summary))
    print_replay(summary)
    say(f"written: {folder} ({', '.join(files)})")


def batch_pictures(passes: Sequence[WatchedPass], order: Sequence[int]) -> dict[str, Tensor]:
    """Return the images of each field as the model got them: uint8 [len(order), 1 or 3, H, W].

    ``order`` has places among the records of all passes. Images of several sizes are left out.
    """
    pictures: dict[str, Tensor] = {}
    for name, first in tensors(passes[0].batch).items() if passes else ():
        parts = [done.batch[name] for done in passes]
        is_number = first.dtype == torch.uint8 or first.is_floating_point()
        has_pixels = first.dim() == 4 and min(first.shape[2:]) > 1 and first.shape[1] in (1, 3)
        if is_number and has_pixels and len({part.shape[1:] for part in parts}) == 1:
            pictures[name] = as_pixels(torch.cat(parts)[torch.tensor(order)])
    return pictures


def as_pixels(images: Tensor) -> Tensor:
    """Return images as uint8. Each channel of floats is stretched from its least to its greatest.

    Values that are not finite are black.
    """
    if images.dtype == torch.uint8:
        return images.cpu()
    values = images.detach().cpu().double()
    finite = values.isfinite()
    low = torch.where(finite, values, math.inf).amin((0, 2, 3), keepdim=True)
    high = torch.where(finite, values, -math.inf).amax((0, 2, 3), keepdim=True)
    shares = torch.where(finite, (values - low) / (high - low).clamp(min=1e-12), 0.0)
    return (255 * shares.nan_to_num(0.0)).round().to(torch.uint8)


def print_replay(summary: Summary) -> None:
    """Print the step, its records, and the gradients beside its neighbors'."""
    skipped = "" if summary["updated"] else ", and the step was skipped"
    rate = f"learning rate {summary['learning_rate']:.3g}"
    say(f"step {summary['step']} of epoch {summary['epoch']}: {_means(summary)}, {rate}{skipped}")
    search = summary["search"]
    if search["first"] < search["last"]:
        say(f"found among steps {search['first']} to {search['last']}")
    checked = "no report of the run lies on the way, so nothing could be compared"
    if differing := summary["differing_reports"]:
        checked = f"NOT as the run took it: the report of step {differing[0]} differs"
        checked += "; look at the versions, the threads and the processor of this machine"
    elif repeated := summary["repeated_reports"]:
        checked = f"{plural(len(repeated), 'report')} on the way came out equal, bit by bit"
    origin = summary["from_state"] or "the start of the run"
    say(f"repeated from {origin} in {summary['wall_s']:.1f} s; {checked}")
    if summary["ended"]:
        say(f"then the run ended: {summary['ended']}")
    records = summary["records"]
    title = "records"
    if len(records) > MOST_ROWS:
        title = f"the {MOST_ROWS} of {len(records)} records with the highest loss"
        if records[0]["loss"] is None:
            title = f"the first {MOST_ROWS} of {len(records)} records"
    say(title)
    rows: list[list[str]] = []
    for own in records[:MOST_ROWS]:
        loss = "" if own["loss"] is None else f"{own['loss']:.4f}"
        rows.append([str(own["index"]), own["key"], str(own["class"] or ""), loss])
    print_table("", ["record", "key", "class"], ["loss"], rows)
    say("norms of the gradients, before clipping")
    print_table("", ["layer"], _columns(summary), gradient_rows(summary))


def _means(summary: Summary) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in summary["means"].items())


def _columns(summary: Summary) -> list[str]:
    steps = [summary["step"], *(own["step"] for own in summary["neighbors"])]
    return [f"step {step}" for step in sorted(steps)]


def gradient_rows(summary: Summary, most: int = MOST_ROWS) -> list[list[str]]:
    """Return a row per layer, with a norm for each column, after one for the loss and the total.

    If there are more than ``most`` layers, those whose norm grew most against the neighbors' stay.
    """
    facts = sorted([summary, *summary["neighbors"]], key=lambda own: own["step"])

    def growth(name: str) -> float:
        norm = summary["gradients"][name]
        others = [own["gradients"].get(name, 0.0) for own in summary["neighbors"]]
        highest = max((norm for norm in others if math.isfinite(norm)), default=0.0)
        return norm / max(highest, 1e-30) if math.isfinite(norm) else math.inf

    layers = list(summary["gradients"])
    kept = sorted(layers, key=growth, reverse=True)[:most]
    rows = [["loss", *(f"{own['means']['loss']:.4g}" for own in facts)]]
    total = [math.hypot(*own["gradients"].values()) for own in facts]
    rows.append(["all layers", *(f"{norm:.4g}" for norm in total)])
    for name in layers:
        if name in kept:
            norms = (own["gradients"].get(name) for own in facts)
            rows.append([name, *("" if norm is None else f"{norm:.4g}" for norm in norms)])
    return rows
