"""Execute the notebooks of `examples/notebooks`, each from its beginning in a folder of its own; an error ends it.

    python tests/notebooks.py        # needs the extra `notebook`

What a notebook shows of a run and of a comparison is HTML: bars while it runs, then a table with a chart.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parent.parent / "examples" / "notebooks"


def shown(path: Path) -> list[str]:
    """The HTML that the notebook shows."""
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            nbformat.read(path, as_version=4), timeout=300, resources={"metadata": {"path": folder}}
        )
        done = client.execute()
    outputs = [output for cell in done.cells for output in cell.get("outputs", ())]
    return [output["data"]["text/html"] for output in outputs if "text/html" in output.get("data", {})]


def main() -> None:
    found = sorted(NOTEBOOKS.glob("*.ipynb"))
    assert len(found) == 3, found
    for path in found:
        pages = shown(path)
        assert any("<svg" in page and "figcaption" in page for page in pages), f"{path.name} shows no chart"
        assert any("<progress" in page and "round" in page for page in pages), f"{path.name} shows no progress"
        sys.stdout.write(f"{path.name}: {len(pages)} shown\n")


if __name__ == "__main__":
    main()
