"""The best draft of a run by held-out acceptance, and when to give up on a better one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

FILE = "best.safetensors"


class Best:
    """Keeps the weights of the best evaluation in a file.

    Args:
        folder: for the file.
        patience: evaluations without a better one that end a run; 0 for never.
    """

    def __init__(self, folder: Path, patience: int):
        self._folder, self._patience = folder, patience
        self.value: float | None = None
        self.step = 0
        self._since = 0

    @property
    def is_over(self) -> bool:
        """Whether patience is at its end."""
        return bool(self._patience) and self._since >= self._patience

    @property
    def state(self) -> dict[str, Any]:
        """For the run's state on disk."""
        return {"value": self.value, "step": self.step, "since": self._since}

    @state.setter
    def state(self, known: dict[str, Any]) -> None:
        self.value, self.step, self._since = known["value"], known["step"], known["since"]

    def add(self, step: int, value: float, weights: Any | None) -> None:
        """Take in an evaluation.

        Args:
            step: after which it was made.
            value: the acceptance length.
            weights: tree of the draft's, None on a machine that writes nothing.
        """
        if self.value is not None and value <= self.value:
            self._since += 1
            return
        self.value, self.step, self._since = value, step, 0
        if weights is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            scratch = self._folder / f".new-{FILE}"
            mx.save_safetensors(str(scratch), dict(tree_flatten(weights)))
            scratch.replace(self._folder / FILE)

    def weights(self) -> dict[str, mx.array] | None:
        """Of the best evaluation, None without one."""
        if self.value is None:
            return None
        found = mx.load(str(self._folder / FILE))
        assert isinstance(found, dict)
        return found
