"""Show the progress of a prediction, and print what was made."""

from collections.abc import Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from framework.commands.predict.prediction_job import OnRecords, Predicted, Prediction
from framework.contracts.records import RecordInput
from framework.errors import printable


@contextmanager
def prediction_bar(name: str, source: RecordInput) -> Generator[OnRecords]:
    """Yield a function that takes records and items. The bar is drawn on a terminal only."""
    console = Console(stderr=True, highlight=False)
    bar = Progress(
        TextColumn("predicting {task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with bar:
        task = bar.add_task(printable(name), total=source.manifest.num_records)
        yield lambda _, items: bar.advance(task, items)


def print_prediction(prediction: Prediction, predicted: Predicted, wall_s: float) -> None:
    """Print one line: how many records, into what, and how fast."""
    fresh = predicted.num_records - predicted.num_resumed
    words = f"predicted {predicted.num_records} records into {prediction.path}: "
    words += f"{wall_s:.1f} s, {fresh / wall_s:,.0f} records/s, {len(predicted.bad)} skipped"
    if predicted.num_resumed:
        words += f" ({predicted.num_resumed} records had been predicted before)"
    print(printable(words), flush=True)
