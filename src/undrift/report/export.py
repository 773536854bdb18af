"""The ledger's numbers as a table for other programs: one row per run and round, or everything as JSON."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from undrift.core.errors import InvalidInput
from undrift.ledger.history import History
from undrift.report.files import refuse_existing, written

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
            text = json.dumps([_whole(history) for history in histories], indent=1, allow_nan=False)
            temporary.write_text(text + "\n", encoding="utf-8")
        elif kind == "csv":
            with temporary.open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file)
                writer.writerow(columns(found))
                writer.writerows([_harmless(row.get(c)) for c in columns(found)] for row in found)
        else:
            _parquet(found, temporary)
    return len(found)


def rows(histories: Sequence[History]) -> list[dict[str, Any]]:
    """One row per run and round: costs of that round, drift, the method's own series, every labelled figure."""
    found = []
    for history in histories:
        figures: dict[int, dict[str, float | None]] = {}
        for at, f, value in history.metrics:
            figures.setdefault(at, {})[f"{f.metric} of the {f.model} model on {f.data}"] = value
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


def columns(found: Sequence[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for row in found for name in row))


def _whole(history: History) -> dict[str, Any]:
    return {
        "run": history.name,
        "method": history.label,
        "seed": history.seed,
        "status": history.status,
        "planned": history.planned,
        "experiment": history.experiment,
        "facts": history.facts,
        "rounds": [{k: _finite(v) for k, v in row.items() if k not in _RUN} for row in rows([history])],
    }


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


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
