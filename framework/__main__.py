"""The console script, and ``python -m framework``. Signals have their meaning before anything large is imported."""

from framework.system.stopping import install


def main() -> None:
    """Run ``paceline``."""
    install()
    from framework.main import main as run  # noqa: PLC0415  # a signal may come while this is imported

    run()


if __name__ == "__main__":
    main()
