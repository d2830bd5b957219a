"""Drafting beside the verify: while the target checks a block, the device drafts the next one.

What comes next is not known then, so the likeliest outcomes are drafted behind, all in one call
(branches.py). If the verify comes to one of them, the next proposal is there already; else the
block is drafted as ever. The features of the tokens that are being verified are not there yet
either: a branch sees these tokens themselves. The target verifies everything, so the text does not
depend on any of this.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from ..devices.device import DeviceError
from ..models.draft_head import DraftHead
from ..models.target import TargetModel
from .branches import Guess, Layout, lay_out, likeliest
from .device_draft import DeviceDraft
from .drafter import DFlashDrafter
from .proposal import Draw, Proposal
from .work import Report

GUESSES = 8  # tokens of each position's ranking that outcomes are made of
DECAY = 0.98
TRIAL = 16  # launches before they are judged
PAUSE = 64  # blocks without launches after they did not pay


@dataclass
class Launch:
    """Branches on their way."""

    layout: Layout
    hidden: Future[np.ndarray]


@dataclass
class Tally:
    """What launches have come to.

    Attributes:
        launched: how many.
        hits: how many held the outcome.
        saved: seconds that hits saved, with decay.
        waited: seconds that blocks had to wait for a launch to end, with decay.
    """

    launched: int = 0
    hits: int = 0
    saved: float = 0.0
    waited: float = 0.0

    def add(self, hit: bool, saved: float, waited: float) -> None:
        """A launch has ended."""
        self.launched += 1
        self.hits += hit
        self.saved = DECAY * self.saved + saved
        self.waited = DECAY * self.waited + waited


class MirroredDrafter(DFlashDrafter):
    """A DFlash drafter whose device also drafts while the target verifies.

    Args:
        draft: on a device.
        target: whose embedding and head it borrows.
        head: see `DFlashDrafter`.
        branches: outcomes to draft behind at most.
    """

    def __init__(
        self,
        draft: DeviceDraft,
        target: TargetModel,
        head: DraftHead | None = None,
        branches: int = 16,
    ):
        super().__init__(draft, target, head=head, work=draft.work)
        self.tally = Tally()
        self._device = draft
        self._branches = branches
        # Embedding branches must not queue behind the verify.
        self._beside = mx.new_stream(mx.default_device())
        self._survival = np.full(self.longest, 0.5)
        self._launch: Launch | None = None
        self._since: list[int] = []  # committed since the launch
        self._anchor, self._verifying = 0, 0
        self._guesses: tuple[mx.array, mx.array] | None = None
        self._block_seconds = 0.0  # what drafting a block takes
        self._pause = 0
        self._ready: bool | None = None

    def extend(self, tokens: Sequence[int], features: mx.array | None, said: bool = False) -> None:
        """Learn what a verify came to."""
        super().extend(tokens, features, said)
        self._since += tokens
        if said and self._verifying:
            accepted = len(tokens) - 1
            for position in range(min(accepted + 1, self._verifying)):
                right = float(position < accepted)
                self._survival[position] += (1 - DECAY) * (right - self._survival[position])
            self._verifying = 0

    def propose(self, anchor: int, length: int, draw: Draw) -> Proposal:
        """From a branch that came true, or a block of its own."""
        self._flush()
        self._anchor = anchor
        hidden = self._landed(anchor)
        if hidden is None:
            hidden = self._drafted(anchor)
        if not self._device.failed:
            self._device.prepare(self._context)
        proposal, logits, ids = self._score(hidden, anchor, length, draw)
        self._rank(logits, ids)
        return proposal

    def meanwhile(self, drafted: Sequence[int]) -> None:
        """Draft behind the likeliest outcomes of verifying these tokens."""
        self._since, self._verifying = [], len(drafted)
        if self._device.failed or self._guesses is None or not self._pays():
            return
        chances, tokens = (array.tolist() for array in self._guesses)
        guesses = [Guess(*row) for row in zip(tokens, chances, strict=True)]
        survival = [
            0.5 * (self._survival[i] + guesses[i].chances[guesses[i].tokens.index(token)])
            if token in guesses[i].tokens
            else float(self._survival[i])
            for i, token in enumerate(drafted)
        ]
        found = likeliest(self._anchor, drafted, guesses, survival, self._branches)
        config = self._draft.config
        layout = lay_out(found, self.longest, config.mask_token_id, self._device.room)
        if not layout.branches:
            return
        with mx.stream(self._beside):
            embedded = self._target.embed(mx.array([layout.tokens]))
            mx.eval(embedded)
            hidden = self._device.ahead(embedded, layout.positions, layout.seen, self._context)
        self._launch = Launch(layout, hidden)

    def report(self) -> Report:
        """What the device has done, and whether the latest proposal had been ready."""
        ready, self._ready = self._ready, None
        return Report(self._device.work(), ready)

    def trim_to(self, length: int) -> None:
        """Drop what is on its way."""
        self._drop()
        super().trim_to(length)

    def _pays(self) -> bool:
        """Whether launches have saved more than they cost, or should be tried again."""
        if self._pause:
            self._pause -= 1
            return False
        tally = self.tally
        if tally.launched >= TRIAL and tally.launched % TRIAL == 0 and tally.saved < tally.waited:
            self._pause = PAUSE
            tally.launched += 1
            return False
        return True

    def _landed(self, anchor: int) -> mx.array | None:
        """Hidden states [1, B - 1, H] of the branch that came true, None if none did."""
        launch, self._launch = self._launch, None
        if launch is None:
            return None
        outcome = (*self._since, anchor)
        known = [branch.tokens for branch in launch.layout.branches]
        self._ready = hit = outcome in known
        start = time.perf_counter()
        try:
            hidden = launch.hidden.result()
        except DeviceError as error:
            self._device.give_up(error)
            return None
        waited = time.perf_counter() - start
        self.tally.add(hit, self._block_seconds if hit else 0.0, waited)
        if not hit:
            return None
        row = launch.layout.rows[known.index(outcome)]
        return mx.array(hidden[None, row : row + self.longest]).astype(mx.float32)

    def _drafted(self, anchor: int) -> mx.array:
        """Hidden states [1, B - 1, H] of a block of its own."""
        mask = self._draft.config.mask_token_id
        start = time.perf_counter()
        embedded = self._target.embed(mx.array([[anchor] + [mask] * self.longest]))
        hidden = self._draft(embedded, self._context)[:, 1:]
        self._block_seconds = time.perf_counter() - start
        return hidden

    def _score(
        self, hidden: mx.array, anchor: int, length: int, draw: Draw
    ) -> tuple[Proposal, mx.array, mx.array | None]:
        """The proposal, and the logits of its rows and one more, where there is one."""
        config = self._draft.config
        rows = hidden[0, : min(length + 1, self.longest)]
        scaled = rows * config.output_multiplier if config.output_multiplier != 1.0 else rows
        logits, ids = self._head(scaled, config.logit_softcap)
        chosen = self._draft.select(rows[:length], logits[:length], anchor, draw, ids)
        return Proposal(chosen.tokens, chosen.scores, chosen.candidates), logits, ids

    def _rank(self, logits: mx.array, ids: mx.array | None) -> None:
        """Queue each row's likeliest tokens, before the verify is queued."""
        chances = mx.softmax(logits.astype(mx.float32), axis=-1)
        best = mx.argsort(-chances, axis=-1)[:, :GUESSES]
        tokens = best if ids is None else ids[best]
        self._guesses = mx.take_along_axis(chances, best, -1), tokens
        mx.async_eval(*self._guesses)

    def _drop(self) -> None:
        if self._launch is not None:
            self._launch.hidden.cancel()
            self._launch = None
