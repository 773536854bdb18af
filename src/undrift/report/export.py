"""The ledger's numbers as a table for other programs: one row per run and round, or everything as JSON."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from undrift.core.errors import InvalidInput
from undrift.core.figure import Figure
from undrift.core.files import refuse_existing, written
from undrift.ledger.history import History
from undrift.ledger.rows import RoundRow
from undrift.report.numbers import valid

FORMATS = ("csv", "parquet", "json")
_RUN = ("run", "method", "seed", "status")


def export(histories: Sequence[History], path: str | Path, *, force: bool = False) -> int:
    """Write runs to a file whose ending says how; returns how many rows there are."""
    kind = Path(path).suffix.lstrip(".").lower()
    if kind not in FORMATS:
        raise InvalidInput(f"{path}: runs are exported to {', '.join('.' + f for f in FORMATS)}")
    refuse_existing(path, force)
    found = rows(histories)
    with written(path, force=force) as temporary:
        if kind == "json":
            text = json.dumps(valid([_whole(history) for history in histories]), indent=1, allow_nan=False)
            temporary.write_text(text + "\n", encoding="utf-8")
        elif kind == "csv":
            with temporary.open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file)
                names = columns(found)
                writer.writerow(names)
                writer.writerows([_harmless(row.get(name)) for name in names] for row in found)
        else:
            _parquet(found, temporary)
    return len(found)


def rows(histories: Sequence[History]) -> list[dict[str, Any]]:
    """One row per run and round: costs of that round, drift, the method's own series, every labelled figure."""
    found = []
    for history in histories:
        figures: dict[int, dict[str, float | None]] = {}
        for at, figure, value in history.metrics:
            figures.setdefault(at, {})[column(figure)] = value
        for row in history.rounds:
            plain = {k: v for k, v in row.plain().items() if k not in ("drift", "notes")}
            found.append(
                {
                    "run": history.name,
                    "method": history.label,
                    "seed": history.seed,
                    "status": history.status,
                    **plain,
                    **{f"drift {k}": v for k, v in row.drift.items()},
                    **{f"note {k}": v for k, v in row.notes.items()},
                    **figures.get(row.round, {}),
                }
            )
    return found


def column(figure: Figure) -> str:
    """What a figure is called in tables for other programs."""
    return f"{figure.metric} of the {figure.model} model on {figure.data}"


def columns(found: Sequence[dict[str, Any]]) -> list[str]:
    """All columns: what the run is and costs, drift, the methods' own series, figures. The page's download has them."""
    known = {*_RUN, *RoundRow.COLUMNS}

    def kind(name: str) -> int:
        return 0 if name in known else 1 if name.startswith("drift ") else 2 if name.startswith("note ") else 3

    return sorted(dict.fromkeys(name for row in found for name in row), key=kind)


def _whole(history: History) -> dict[str, Any]:
    return {
        "run": history.name,
        "method": history.label,
        "seed": history.seed,
        "status": history.status,
        "planned": history.planned,
        "experiment": history.experiment,
        "facts": history.facts,
        "rounds": [{k: v for k, v in row.items() if k not in _RUN} for row in rows([history])],
    }


def _harmless(value: Any) -> Any:
    """Text that a spreadsheet would take for a formula gets a quote in front."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


def _parquet(found: Sequence[dict[str, Any]], path: Path) -> None:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise InvalidInput("Parquet files need pyarrow: pip install 'undrift[data]'") from None
    table = pa.table({name: [row.get(name) for row in found] for name in columns(found)})
    parquet.write_table(table, path)
