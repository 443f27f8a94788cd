"""TensorBoard: metrics, learning rate, speed, spans and usage; hyperparameters; sample images."""

import time
from io import BytesIO
from pathlib import Path
from typing import final

# protobuf makes these modules when they are imported.
from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]
from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from framework.contracts.training import Report, RunContext
from framework.sink.base import array_pictures, sample_pictures, values_of
from framework.system import run_dir as files
from framework.system.durable import write_bytes

# TensorBoard reads files in the order of their names, and keeps the first hyperparameters.
HPARAMS = "events.out.tfevents.0000000000.hparams"


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
        write_hparams(folder / HPARAMS, run.run_dir)
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


def write_hparams(path: Path, run_dir: Path) -> None:
    """Write the newest configuration of a run as hyperparameters, for the tab HParams.

    The metrics of that tab are the scalars of the run. What is null has no value.
    """
    values: dict[str, int | float | str] = {}
    for name, value in files.flat(files.read_object(files.newest_config(run_dir))).items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            values[files.shown(name)] = value
        elif value is not None:
            values[files.shown(name)] = files.shown(value)
    _, start, _ = hparams(values, {})
    buffer = BytesIO()
    records = RecordWriter(buffer)
    for event in (Event(file_version="brain.Event:2"), Event(summary=start)):
        event.wall_time = time.time()
        records.write(event.SerializeToString())
    write_bytes(path, buffer.getvalue())
