"""A user's sink that waits for a server at each report."""

import time

from framework.contracts.training import Report, RunContext

ANSWER_S = 0.05


class SlowSink:
    """Waits as long as a near server takes to answer."""

    def __init__(self, *, run: RunContext) -> None:
        self.run = run

    def write(self, report: Report) -> None:
        time.sleep(ANSWER_S)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass
