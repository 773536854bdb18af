"""``python -m undrift``."""

from undrift.cli import main

main()
