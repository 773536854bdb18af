"""The ``undrift`` command, also as ``python -m undrift``: what can go wrong before the command line is there."""

from __future__ import annotations

import sys

NEEDED = ("click", "rich", "typer")  # by the command line alone


def main() -> None:
    try:
        from undrift.cli import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    except ModuleNotFoundError as error:
        if error.name not in NEEDED:
            raise
        sys.stderr.write(f"undrift: the command line needs {error.name}: pip install 'undrift[cli]'\n")
        sys.exit(2)
    run()


if __name__ == "__main__":
    main()
