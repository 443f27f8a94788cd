"""A real MLflow server on loopback, which tests can end and start again."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

START_S = 60.0

# The server's own application, without the programs that ``mlflow server`` starts beside it.
PROGRAM = """
from werkzeug.serving import run_simple
from mlflow.server import app
run_simple("127.0.0.1", {port}, app, threaded=True)
"""


class TrackingServer:
    """A server with its database in ``folder``. ``stop`` and ``start`` keep the port."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen | None = None

    def start(self) -> None:
        store = f"sqlite:///{self._folder}/mlflow.db"
        environment = {
            "_MLFLOW_SERVER_FILE_STORE": store,
            "_MLFLOW_SERVER_REGISTRY_STORE": store,
            "_MLFLOW_SERVER_ARTIFACT_ROOT": "mlflow-artifacts:/",
            "_MLFLOW_SERVER_ARTIFACT_DESTINATION": str(self._folder / "artifacts"),
            "_MLFLOW_SERVER_SERVE_ARTIFACTS": "true",
            "MLFLOW_DISABLE_TELEMETRY": "true",
        }
        with open(self._folder / "server.log", "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM.format(port=self._port)],
                env={**os.environ, **environment},
                stdout=log,
                stderr=log,
            )
        end = time.monotonic() + START_S
        while not self._answers():
            assert self._process.poll() is None, (self._folder / "server.log").read_text()
            assert time.monotonic() < end
            time.sleep(0.1)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        with suppress(OSError):
            address = f"{self.uri}/api/2.0/mlflow/experiments/get?experiment_id=0"
            return urllib.request.urlopen(address, timeout=30).status == 200
        return False
