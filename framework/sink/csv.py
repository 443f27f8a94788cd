"""Curves as CSV files, for spreadsheets and other programs."""

import csv
import os
from collections.abc import Iterable
from itertools import compress
from pathlib import Path
from typing import final

from framework.contracts.training import Report, RunContext
from framework.system.durable import publish
from framework.system.safe_text import csv_cell

FIRST = ("step", "epoch")
LAST = ("lr", "records_per_s")
Row = dict[str, str]


@final
class CsvSink:
    """Writes ``curves/train.csv`` and ``val.csv``. A resumed run drops the rows after its step."""

    def __init__(self, *, run: RunContext) -> None:
        self._folder = run.run_dir / "curves"
        self._curves: dict[str, _Curve] = {}
        for path in sorted(self._folder.glob("*.csv")):
            self._curves[path.stem] = _Curve(path, run.start_step)

    def write(self, report: Report) -> None:
        split = report.split.replace(os.sep, "_")
        if split not in self._curves:
            self._curves[split] = _Curve(self._folder / f"{split}.csv", report.step)
        row = {"step": str(report.step), "epoch": str(report.epoch)}
        for name, value in report.means.items():
            row[csv_cell(name)] = repr(float(value))
        row["lr"] = "" if report.learning_rate is None else repr(report.learning_rate)
        row |= {f"lr_{part}": repr(rate) for part, rate in report.rates.items()}
        row["records_per_s"] = repr(float(report.records_per_s))
        self._curves[split].add(row)

    def flush(self) -> None:
        for curve in self._curves.values():
            os.fsync(curve.file.fileno())

    def close(self) -> None:
        for curve in self._curves.values():
            curve.file.close()


class _Curve:
    """The file of one split. A metric gets a column when it first appears."""

    def __init__(self, path: Path, last_step: int) -> None:
        self._path = path
        self._columns: list[str] = []
        if path.exists():
            self._columns, rows = self._read()
            steps = (row.get("step", "") for row in rows)  # another program may write anything
            kept = (step.isdecimal() and int(step) <= last_step for step in steps)
            self._rewrite(self._columns, compress(rows, kept))
        self._open()

    def add(self, row: Row) -> None:
        if not row.keys() <= set(self._columns):
            # Rewrite the file with empty cells in the rows so far. If the disk refuses, the file
            # stays as it is.
            metrics = [name for name in (*self._columns, *row) if name not in (*FIRST, *LAST)]
            columns = [*FIRST, *dict.fromkeys(metrics), *LAST]
            try:
                self.file.close()
                self._rewrite(columns, self._read()[1])
                self._columns = columns
            finally:
                self._open()
        self._writer.writerow(row)

    def _open(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # Buffered by the line, so that readers see whole lines at once.
        self.file = open(self._path, "a", encoding="utf-8", newline="", buffering=1)  # noqa: SIM115
        # A full disk may have left a part of a row.
        self.file.truncate(self._path.read_bytes().rfind(b"\n") + 1)
        self._writer = csv.DictWriter(self.file, self._columns, restval="", lineterminator="\n")

    def _read(self) -> tuple[list[str], list[Row]]:
        """Return the columns and the whole rows: a kill or a full disk may have torn the last."""
        lines = self._path.read_text(encoding="utf-8").splitlines(keepends=True)
        reader = csv.DictReader(line for line in lines if line.endswith("\n"))
        return list(reader.fieldnames or ()), [row for row in reader if None not in row]

    def _rewrite(self, columns: list[str], rows: Iterable[Row]) -> None:
        with publish(self._path) as path, open(path, "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
