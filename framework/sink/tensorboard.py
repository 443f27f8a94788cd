"""TensorBoard: loss, metrics, learning rate, records per second, where the time goes, usage; sample images once."""

from typing import final

import torch
from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]  # protobuf makes it when imported
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

from framework.contracts.batch import Batch, tensors
from framework.contracts.training import Report, RunContext


@final
class TensorBoardSink:
    """Event files under ``run_dir/tensorboard``. ``num_images``: sample records shown, 0 for none.

    Tags are ``loss/train``, ``loss/val``, ...: both splits side by side, and what is learned first on the page: TensorBoard sorts the
    parts before the slash and unfolds the first two, so no tag of the machine's may come before ``loss``.
    """

    def __init__(self, num_images: int, *, run: RunContext) -> None:
        folder = run.run_dir / "tensorboard"
        purge_step = run.start_step + 1 if folder.exists() else None
        self._writer = SummaryWriter(str(folder), purge_step=purge_step)
        for name, images in _images(run.sample, 0 if run.start_step else num_images).items():
            self._writer.add_images(f"sample/{name}", images, global_step=0)

    def write(self, report: Report) -> None:
        scalars = {f"{name}/{report.split}": value for name, value in report.means.items()}
        scalars[f"records_per_s/{report.split}"] = report.records_per_s
        if report.split == "train":
            scalars |= {"lr/train": report.learning_rate or 0.0, **_times(report)}
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        assert self._writer.file_writer is not None
        self._writer.file_writer.add_summary(
            Summary(value=values), report.step
        )  # one event for all: add_scalar takes 30 us for each

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def _times(report: Report) -> dict[str, float]:
    """Where the time went: tags and values."""
    found: dict[str, float] = {}
    for name, span in report.spans.items():
        found |= {
            f"span/{name}_s": span.mean_s,
            f"span_p50/{name}_s": span.p50_s,
            f"span_p90/{name}_s": span.p90_s,
        }
    found |= {f"stage/{name}_s": seconds for name, seconds in report.stages_s.items()}
    found |= {f"usage/{name}": value for name, value in report.usage.items()}
    more = {
        "stage/ready": report.ready,
        "usage/skipped_steps": report.skipped or None,
        "time_left/epoch_records": report.epoch_left,
        "time_left/run_s": report.left_s,
    }
    return found | {tag: value for tag, value in more.items() if value is not None}


def _images(sample: Batch, count: int) -> dict[str, Tensor]:
    """The fields of a batch that are images: uint8 [B, 1 or 3, H, W]."""
    if not count:
        return {}
    return {name: one[:count] for name, one in tensors(sample).items() if _is_image(one)}


def _is_image(tensor: Tensor) -> bool:
    return tensor.dtype == torch.uint8 and tensor.dim() == 4 and tensor.shape[1] in (1, 3)
