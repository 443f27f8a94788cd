"""TensorBoard: loss, metrics, learning rate, speed, spans and usage; sample images once."""

from typing import final

import torch

# protobuf makes this module when it is imported.
from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

from framework.contracts.batch import tensors
from framework.contracts.training import Report, RunContext

CELLS = 256  # pixels of the longer side of an array's picture


@final
class TensorBoardSink:
    """Writes event files to ``run_dir/tensorboard``, and shows ``num_images`` sample records.

    Tags end in the split, as in ``loss/train`` and ``loss/val``, so that both splits share a chart.
    TensorBoard sorts the parts before the slash and unfolds the first two. So no tag about the
    machine may sort before ``loss``.
    """

    def __init__(self, num_images: int, *, run: RunContext) -> None:
        folder = run.run_dir / "tensorboard"
        purge_step = run.start_step + 1 if folder.exists() else None
        self._writer = SummaryWriter(str(folder), purge_step=purge_step)
        if num_images and not run.start_step:
            for name, tensor in tensors(run.sample).items():
                if _is_image(tensor):
                    images = tensor[:num_images]
                    self._writer.add_images(f"sample/{name}", images, global_step=0)

    def write(self, report: Report) -> None:
        scalars = {f"{name}/{report.split}": value for name, value in report.means.items()}
        scalars[f"records_per_s/{report.split}"] = report.records_per_s
        if report.split == "train":
            scalars["lr/train"] = report.learning_rate or 0.0
            scalars |= _measurements(report)
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        assert self._writer.file_writer is not None
        # One event for all values: add_scalar takes 30 us for each.
        self._writer.file_writer.add_summary(Summary(value=values), report.step)
        for name, array in report.arrays.items():
            if 1 <= array.dim() <= 2 and array.numel():
                picture = _picture(array)
                self._writer.add_image(f"{name}/{report.split}", picture, report.step)

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def _picture(array: Tensor) -> Tensor:
    """Return an array of one or two dimensions as a picture, uint8 [1, H, W].

    Zero and less are white, and the largest value of each row is black. So a confusion matrix is
    dark on its diagonal, however many records each class has.
    """
    rows = array.nan_to_num(0.0, 0.0, 0.0).double().clamp(min=0).reshape(-1, array.shape[-1])
    shares = rows / rows.amax(1, keepdim=True).clamp(min=1e-300)
    cell = max(1, CELLS // max(rows.shape))
    shades = (255 * (1 - shares)).to(torch.uint8)
    return shades.repeat_interleave(cell, 0).repeat_interleave(cell, 1).unsqueeze(0)


def _measurements(report: Report) -> dict[str, float]:
    """Return the tags and values of spans, stages and usage."""
    values: dict[str, float] = {}
    for name, span in report.spans.items():
        values[f"span/{name}_s"] = span.mean_s
        values[f"span_p50/{name}_s"] = span.p50_s
        values[f"span_p90/{name}_s"] = span.p90_s
    values |= {f"stage/{name}_s": seconds for name, seconds in report.stages_s.items()}
    values |= {f"share/{name}": share for name, share in report.content.items()}
    values |= {f"usage/{name}": value for name, value in report.usage.items()}
    optional = {
        "stage/ready": report.ready,
        "usage/skipped_steps": report.skipped or None,
        "time_left/epoch_records": report.epoch_left,
        "time_left/run_s": report.left_s,
    }
    return values | {tag: value for tag, value in optional.items() if value is not None}


def _is_image(tensor: Tensor) -> bool:
    """Return whether a field is uint8 [B, 1 or 3, H, W]."""
    return tensor.dtype == torch.uint8 and tensor.dim() == 4 and tensor.shape[1] in (1, 3)
