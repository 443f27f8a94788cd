"""Write what a replay found: ``replay.json``, pictures of the batch, and a page."""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from framework.commands.replay.step_again import ReplayedStep
from framework.commands.replay.watched_steps import WatchedPass
from framework.config.predict_images import class_name
from framework.contracts.batch import tensors
from framework.contracts.data import record_key
from framework.contracts.prediction import Predicts
from framework.errors import ResourceError
from framework.sink.report_values import write_grid_picture
from framework.system.durable import write_json, write_text
from framework.system.extras import needed
from framework.system.redaction import redacted

RESULT = "replay.json"
MOST_PICTURES = 64  # records in the picture and on the page


def write_replay(replayed: ReplayedStep, run_dir: Path) -> Path:
    """Write the files into ``replay/step_N`` of the run, and return this folder."""
    summary = replayed.summary
    folder = run_dir / "replay" / f"step_{summary['step']}"
    folder.mkdir(parents=True, exist_ok=True)
    records = _records(replayed)
    order = sorted(range(len(records)), key=lambda place: _badness(records[place]), reverse=True)
    summary["records"] = [records[place] for place in order]
    pictures = batch_pictures(replayed.passes, order[:MOST_PICTURES])
    summary["files"] = [RESULT, *_write_pictures(pictures, folder)]
    if _draws_pages():
        from framework.commands.replay.replay_page import replay_page  # noqa: PLC0415  # needs jinja2

        write_text(folder / "replay.html", redacted(replay_page(summary, pictures)))
        summary["files"].append("replay.html")
    write_json(folder / RESULT, redacted(summary))
    return folder


def _write_pictures(pictures: dict[str, Tensor], folder: Path) -> list[str]:
    """Write a file for the images of each field. Return the names of the files."""
    files: list[str] = []
    for number, (name, images) in enumerate(pictures.items()):
        # a field may have any name
        ending = re.sub(r"[^\w.-]", "_", f"-{name}") if number else ""
        write_grid_picture(folder / f"batch{ending}.png", images)
        files.append(f"batch{ending}.png")
    return files


def _draws_pages() -> bool:
    try:
        needed("jinja2", "report")
    except ResourceError:
        return False
    return True


def _badness(record: dict[str, Any]) -> float:
    """Return the loss of a record. One that is no number is the worst."""
    loss = record["loss"]
    if loss is None:
        return 0.0
    return math.inf if math.isnan(loss) else loss


def _records(replayed: ReplayedStep) -> list[dict[str, Any]]:
    """Return index, key, class and loss of every record, in the order of the passes."""
    rows: list[dict[str, Any]] = []
    for done in replayed.passes:
        indices = done.batch["index"].tolist()
        losses: list[float | None] = [None] * len(indices)
        if done.losses is not None:
            losses = list(done.losses.tolist())
        names = _class_names(replayed, done)
        for index, loss, name in zip(indices, losses, names, strict=True):
            key = record_key(replayed.source, index)
            rows.append({"index": index, "key": key, "class": name, "loss": loss})
    return rows


def _class_names(replayed: ReplayedStep, done: WatchedPass) -> Sequence[str | None]:
    """Return the name of each record's class; None if its target is no class."""
    target: Any = None
    if isinstance(replayed.objective, Predicts):
        target = done.batch.get(replayed.objective.target)
    if not isinstance(target, Tensor) or target.dim() != 1 or target.is_floating_point():
        return [None] * len(done.batch["index"])
    classes = replayed.source.manifest.classes
    return [class_name(classes, number) for number in target.tolist()]


def batch_pictures(passes: Sequence[WatchedPass], order: Sequence[int]) -> dict[str, Tensor]:
    """Return the images of each field as the model got them: uint8 [len(order), 1 or 3, H, W].

    Passes whose images have other sizes than those of the first one are left out.

    Args:
        passes: The forward passes of a step.
        order: The places of the records among those of all passes.
    """
    pictures: dict[str, Tensor] = {}
    if not passes or not order:
        return pictures
    for name, first in tensors(passes[0].batch).items():
        parts = [done.batch.get(name) for done in passes]
        alike = [part for part in parts if isinstance(part, Tensor)]
        is_whole = len({part.shape[1:] for part in alike}) == 1 and len(alike) == len(passes)
        if is_image(first) and is_whole:
            pictures[name] = as_pixels(torch.cat(alike)[torch.tensor(order)])
    return pictures


def is_image(values: Tensor) -> bool:
    """Return whether a field holds images, [B, 1 or 3, H, W], as the model got them."""
    is_number = values.dtype == torch.uint8 or values.is_floating_point()
    has_pixels = values.dim() == 4 and min(values.shape[2:], default=0) > 1
    return is_number and has_pixels and values.shape[1] in (1, 3) and not values.is_nested


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
    span = (high - low).clamp(min=1e-12)
    shares = torch.where(finite, (values - low) / span, 0.0).nan_to_num(0.0)
    return (255 * shares).round().to(torch.uint8)
