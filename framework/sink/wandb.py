"""Weights & Biases, offline: a run in ``run_dir/wandb``, for ``wandb sync`` to upload."""

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, final

from framework.contracts.training import RunContext
from framework.sink.base import Event, Outbox, TrackedSink, inside, read_config
from framework.system.run_dir import redacted
from framework.system.user_code import needed

NAME = "wandb"
# Nothing is sent anywhere, the library's own statistics included.
CLIENT = {"WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true"}
QUIET = ("disable_code", "disable_git", "silent", "x_disable_meta", "x_disable_stats")
EXIT_CODES = {"FINISHED": 0, "KILLED": 1, "FAILED": 1}


@final
class WandbSink(TrackedSink):
    """Writes an offline run, from a thread that the run never waits for.

    It cannot be changed. So a resumed run writes it anew, under the same id, from the events in
    ``run_dir/outbox``. Without a ``name`` it has that of its directory.
    """

    def __init__(
        self,
        project: str,
        name: str | None,
        num_images: int,
        checkpoints: bool,
        every_s: float,
        close_s: float,
        *,
        run: RunContext,
    ) -> None:
        # the names are sent as typed, with ${oc.env:NAME} in place of a value
        shown = redacted(name or run.run_dir.resolve().name)
        outbox = Outbox(run.run_dir, NAME)
        tracker = WandbTracker(outbox, redacted(project), shown, run.say)
        super().__init__(outbox, tracker, num_images, checkpoints, every_s, close_s, run)


@final
class WandbTracker:
    """Writes the events of an outbox into an offline run, always from the first one."""

    def __init__(self, outbox: Outbox, project: str, name: str, say: Callable[[str], None]) -> None:
        for variable, value in CLIENT.items():
            os.environ.setdefault(variable, value)
        needed("wandb", "wandb")
        self._outbox = outbox
        self._project = project
        self._name = name
        self._say = say
        self._run: Any = None
        self._exit_code = 1
        outbox.state |= {"project": project, "name": name}
        outbox.sent = 0
        outbox.save()

    def send(self, events: Sequence[Event]) -> None:
        import wandb  # noqa: PLC0415

        run_dir = self._outbox.run_dir
        if self._run is None:
            run_id = self._outbox.state["token"][:8]
            for folder in (run_dir / "wandb").glob(f"offline-run-*-{run_id}"):
                shutil.rmtree(folder)
            self._hooks = sys.exit, sys.excepthook
            own: dict[str, Any] = {"id": run_id, "project": self._project, "name": self._name}
            settings: dict[str, Any] = {"console": "off", **dict.fromkeys(QUIET, True)}
            self._run = wandb.init(mode="offline", dir=str(run_dir), settings=settings, **own)
        for event in events:
            if "report" in event:
                self._run.log(event["values"], step=event["step"])
            elif "begin" in event:
                self._run.config.update(read_config(run_dir, event["begin"]), allow_val_change=True)
            elif "end" in event:
                self._exit_code = EXIT_CODES[event["end"]]
            for name in event.get("files", ()):  # pictures to the charts, others as links
                path = inside(run_dir, name)
                if path is None:
                    continue
                if path.suffix == ".png":
                    self._run.log({path.stem: wandb.Image(str(path))}, step=event["step"])
                else:
                    self._run.save(str(path), base_path=str(run_dir), policy="now")

    def close(self) -> None:
        if self._run is None:
            return
        import wandb  # noqa: PLC0415

        folder = Path(self._run.dir).parent
        self._run.finish(exit_code=self._exit_code)
        wandb.teardown()  # ends its process
        if getattr(sys.excepthook, "__module__", "").startswith("wandb."):
            sys.exit, sys.excepthook = self._hooks  # else each later error is printed once more
        self._say(f"wandb: an offline run, send it with: wandb sync {shlex.quote(str(folder))}")
