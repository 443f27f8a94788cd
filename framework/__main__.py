"""The console script, and ``python -m framework``."""

from framework.system.stopping import install


def main() -> None:
    """Run ``paceline``."""
    install()  # signals have their meaning before anything large is imported
    from framework.main import main as run  # noqa: PLC0415

    run()


if __name__ == "__main__":
    main()
