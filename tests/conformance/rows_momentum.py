"""Momentum on the server and on the clients, adaptive servers, sharpness-aware methods."""

from __future__ import annotations

from conformance.table import Row

ROWS: list[Row] = []
