"""Start one rank: ``python -m framework.commands.train.start_rank FILE``.

Signals get their meaning before anything large is imported.
"""

import os
import signal
import sys

from framework.system.stopping import die_with_parent, set_all


def main(path: str) -> None:
    """Run the rank that ``FILE`` describes, a file that its launcher holds in memory."""
    die_with_parent()
    set_all(signal.SIG_DFL)  # there is nothing to save before the first step
    if not os.path.exists(
        path
    ):  # the launcher died before the kernel knew that this process must die with it
        os._exit(1)
    from framework.commands.train.run_ranks import main as run  # noqa: PLC0415

    run(path)


if __name__ == "__main__":
    main(sys.argv[1])
