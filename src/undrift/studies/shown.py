"""How a study shows itself in Python: as text, as HTML in a notebook, as a table for pandas."""

from __future__ import annotations

from html import escape
from typing import Any

from undrift.core.errors import InvalidInput


class Shown:
    """A study's outcome. Subclasses give ``records`` (numbers) and ``lines`` (a table of texts, and sentences)."""

    def records(self) -> list[dict[str, Any]]:
        raise NotImplementedError

    def lines(self) -> tuple[list[list[str]], list[str]]:
        raise NotImplementedError

    def to_pandas(self) -> Any:
        """The records as a ``pandas.DataFrame``."""
        try:
            import pandas
        except ImportError:
            raise InvalidInput(
                "to_pandas() needs pandas: pip install pandas; records() gives the same as a list"
            ) from None
        return pandas.DataFrame(self.records())

    def __repr__(self) -> str:
        table, sentences = self.lines()
        widths = [max(len(line[i]) for line in table) for i in range(len(table[0]))]

        def drawn(line: list[str]) -> str:
            cells = [line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))]
            return "  ".join(cells).rstrip()

        rule = "  ".join("-" * width for width in widths)
        return "\n".join([drawn(table[0]), rule, *map(drawn, table[1:]), *(["", *sentences] if sentences else [])])

    def _repr_html_(self) -> str:
        (head, *rows), sentences = self.lines()
        header = "".join(f"<th>{escape(cell)}</th>" for cell in head)
        body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
        told = "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences)
        return f"<table><thead><tr>{header}</tr></thead><tbody>{body}</tbody></table>{told}"
