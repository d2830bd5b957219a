"""What the terminal shows: answers as they come, progress, tables.

The answer goes to stdout, everything else to stderr, so that `mirror-sd generate ... > file` keeps
only the answer.
"""

from __future__ import annotations

import time
import warnings
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from ..errors import Notice

if TYPE_CHECKING:
    from ..api import GenerationResponse
    from ..decoding.divergence import Divergence
    from ..decoding.plain import PlainRun
    from ..decoding.statistics import Statistics

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)
REFRESH_SECONDS = 1 / 15
LINE_SECONDS = 30.0
ACCEPTED_STYLE = "green"


def show_error(message: object) -> None:
    """One line on stderr."""
    err.print(Text("error: ", style="bold red") + Text(str(message)), soft_wrap=True)


def show_note(message: object) -> None:
    """One line on stderr."""
    err.print(Text("note: ", style="yellow") + Text(str(message)), soft_wrap=True)


def show_notices() -> None:
    """From here on, notices appear as lines on stderr."""
    default = warnings.showwarning

    def show(message: Any, category: type[Warning], *rest: Any, **more: Any) -> None:
        if issubclass(category, Notice):
            show_note(message)
        else:
            default(message, category, *rest, **more)

    warnings.showwarning = show


class Loading:
    """A bar for loading, downloading and converting; also a `demo.Progress`."""

    def __init__(self, label: str):
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            console=err,
            transient=True,
        )
        self._task = self._bar.add_task(label, total=None)

    def __enter__(self) -> Loading:
        if err.is_terminal:  # elsewhere a bar is only noise
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def __call__(self, label: str, share: float | None) -> None:
        """Show what is being done and how far it is."""
        if share is None:
            self._bar.reset(self._task, description=label, total=None)
        else:
            self._bar.update(self._task, description=label, total=1.0, completed=share)


class Steps:
    """A bar for long work that is counted, with the time it will still take; where there is no
    terminal, a line now and then.
    """

    def __init__(self, label: str):
        self._label = label
        self._shown = time.monotonic()
        self._bar = Progress(
            TextColumn(label),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=err,
        )
        self._task: TaskID | None = None

    def __enter__(self) -> Steps:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def __call__(self, done: int, of: int, text: str) -> None:
        """Show how much is done, and a few words on it."""
        if err.is_terminal:
            if self._task is None:
                self._task = self._bar.add_task(text, total=of, completed=done)
                self._bar.start()
            self._bar.update(self._task, completed=done, total=of, description=text)
        elif done == of or time.monotonic() - self._shown >= LINE_SECONDS:
            self._shown = time.monotonic()
            err.print(f"{self._label} {done}/{of}  {text}".rstrip(), soft_wrap=True)


class Answer:
    """Streams an answer. In a terminal, a status line below it shows speed and acceptance."""

    def __init__(self, show_accepted: bool = False):
        self._show_accepted = show_accepted
        self._line = Text()
        self._status = Text("thinking ...", style="dim")
        self._live: Live | None = None
        self._shown = 0.0
        if out.is_terminal:
            self._live = Live(console=out, auto_refresh=False, transient=True)

    def __enter__(self) -> Answer:
        if self._live:
            self._live.start()
            self._refresh(force=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live:
            self._live.stop()
        self._flush_line()

    def prefill(self, done: int, total: int) -> None:
        """Show how much of the prompt is read."""
        self._status = Text(f"prompt {done}/{total} tokens", style="dim")
        self._refresh()

    def add(self, response: GenerationResponse) -> None:
        """Show a token."""
        style = ACCEPTED_STYLE if self._show_accepted and response.from_draft else ""
        if self._live is None:
            out.print(Text(response.text, style=style), end="", soft_wrap=True)
            return
        *complete, rest = response.text.split("\n")
        for part in complete:
            self._line.append(part, style=style)
            self._flush_line()
        self._line.append(rest, style=style)
        self._status = Text(
            f"{response.generation_tokens} tokens  {response.generation_tps:.1f} tok/s  "
            f"acceptance {response.acceptance_length:.2f}",
            style="dim",
        )
        self._refresh()

    def _flush_line(self) -> None:
        out.print(self._line, soft_wrap=True)
        self._line = Text()

    def _refresh(self, force: bool = False) -> None:
        now = time.perf_counter()
        if self._live and (force or now - self._shown >= REFRESH_SECONDS):
            self._live.update(Group(self._line, self._status), refresh=True)
            self._shown = now


def statistics_table(statistics: Statistics) -> Table:
    """The figures of an answer."""
    table = Table(show_header=False)
    for label, value in _figures(statistics):
        table.add_row(label, value)
    return table


def comparison_table(
    statistics: Statistics, plain: PlainRun, divergence: Divergence | None
) -> Table:
    """The figures of an answer beside those of the same prompt decoded plainly."""
    count, rate = len(plain.tokens), plain.tokens_per_second
    ratio = statistics.tokens_per_second / rate if rate else 0.0
    of_plain = [str(count), "1.00", str(count), "", f"{plain.seconds:.2f} s", f"{rate:.1f} tok/s"]
    table = Table()
    table.add_column("")
    table.add_column("mirror-sd", justify="right")
    table.add_column("plain mlx-lm", justify="right")
    for (label, value), other in zip(_figures(statistics), of_plain, strict=True):
        table.add_row(label, value, other)
    table.add_row("speed over plain", f"{ratio:.2f}x", "1.00x")
    table.add_row("identical text", str(divergence) if divergence else "yes", "")
    return table


def _figures(s: Statistics) -> list[tuple[str, str]]:
    return [
        ("tokens", str(s.tokens)),
        ("acceptance length", f"{s.acceptance_length:.2f}"),
        ("target passes", str(s.passes)),
        ("draft time", f"{s.draft_seconds:.2f} s"),
        ("verify time", f"{s.verify_seconds:.2f} s"),
        ("speed", f"{s.tokens_per_second:.1f} tok/s"),
    ]
