"""``python -m train``: ``study`` runs many trainings, every other subcommand is one run."""

import sys


def program() -> int | None:
    """Dispatch; each side imports only what it needs."""
    if sys.argv[1:2] == ["study"]:
        from train.study.cli import main as study

        return study()
    from train.cli import main

    main()
    return None


if __name__ == "__main__":
    sys.exit(program())
