"""Pieces of Markdown reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def facts(rows: Mapping[str, str]) -> str:
    """A list of labels and values."""
    return "\n".join(f"- {label}: {value}" for label, value in rows.items())


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])
