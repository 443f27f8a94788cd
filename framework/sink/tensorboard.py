"""TensorBoard: loss, metrics, learning rate, speed, spans and usage; sample images once."""

import time
from typing import final

# protobuf makes this module when it is imported.
from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]
from torch.utils.tensorboard import SummaryWriter

from framework.contracts.training import Report, RunContext
from framework.sink.base import array_pictures, sample_pictures, values_of


@final
class TensorBoardSink:
    """Writes event files to ``run_dir/tensorboard``, and shows ``num_images`` sample records.

    TensorBoard sorts the parts of tags before the slash and unfolds the first two. So no tag about
    the machine may sort before ``loss``.
    """

    def __init__(self, num_images: int, *, run: RunContext) -> None:
        folder = run.run_dir / "tensorboard"
        purge_step = run.start_step + 1 if folder.exists() else None
        # TensorBoard reads files in the order of their names, which begin with the second.
        now_s = time.time()
        if any(folder.glob(f"events.out.tfevents.{int(now_s):010d}.*")):
            time.sleep(int(now_s) + 1 - now_s)
        self._writer = SummaryWriter(str(folder), purge_step=purge_step)
        if not run.start_step:
            for name, images in sample_pictures(run.sample, num_images).items():
                self._writer.add_images(f"sample/{name}", images, global_step=0)

    def write(self, report: Report) -> None:
        scalars = values_of(report).items()
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars]
        assert self._writer.file_writer is not None
        # One event for all values: add_scalar takes 30 us for each.
        self._writer.file_writer.add_summary(Summary(value=values), report.step)
        for name, picture in array_pictures(report.arrays).items():
            self._writer.add_images(f"{name}/{report.split}", picture, report.step)

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
