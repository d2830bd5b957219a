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
from . import ranking
from .branch_policy import BranchPolicy
from .branches import Guess, Layout, fitting, lay_out, likeliest
from .device_draft import DeviceDraft
from .device_drafter import DeviceDrafter
from .drafter import Context
from .proposal import Draw, Proposal
from .work import Report

GUESSES = 8  # tokens of each position's ranking that outcomes are made of


@dataclass(frozen=True)
class Verifying:
    """Drafted tokens are being verified.

    Attributes:
        drafted: how many.
        confidences: the draft's chance for each; None if there is nothing to draft beside with.
        began: when, by time.perf_counter.
    """

    drafted: int
    confidences: list[float] | None
    began: float


@dataclass(frozen=True)
class Launch:
    """Branches on their way."""

    layout: Layout
    hidden: Future[np.ndarray]


class MirroredDrafter(DeviceDrafter):
    """A DFlash drafter whose device also drafts while the target verifies.

    Args:
        draft: on a device.
        target: whose embedding and head it borrows.
        head: see `DeviceDrafter`.
        policy: whether to draft beside the verify, behind which outcomes, and how deep.
    """

    def __init__(
        self,
        draft: DeviceDraft,
        target: TargetModel,
        head: DraftHead | None = None,
        policy: BranchPolicy | None = None,
    ):
        super().__init__(draft, target, head)
        self.policy = policy or BranchPolicy()
        # Embedding branches must not queue behind the verify.
        self._beside = mx.new_stream(mx.default_device())
        self._launch: Launch | None = None
        self._since: list[int] = []  # committed since the launch
        self._anchor, self._planned = 0, 0
        self._verifying: Verifying | None = None
        self._guesses: tuple[mx.array, mx.array] | None = None
        self._ready: bool | None = None
        self._from_branch = False
        self._last_said: float | None = None

    def extend(self, tokens: Sequence[int], context: Context, said: bool = False) -> None:
        """Learn what a verify came to."""
        super().extend(tokens, context, said)
        self._since += tokens
        now, self._last_said, last = time.perf_counter(), None, self._last_said
        if not said:
            return
        self._last_said = now
        if last is not None:
            self.policy.passed(len(tokens), now - last)
        verifying, self._verifying = self._verifying, None
        if verifying is not None:
            accepted = min(len(tokens) - 1, verifying.drafted)
            self.policy.verified(
                verifying.drafted, accepted, self._from_branch, verifying.confidences
            )
            self.policy.window(
                verifying.drafted + 1, self._launch is not None, now - verifying.began
            )

    def propose(self, anchor: int, length: int, draw: Draw) -> Proposal:
        """From a branch that came true, or a block of its own."""
        self._flush()
        self._anchor, self._planned = anchor, length
        hidden = self._landed(anchor)
        self._from_branch = hidden is not None
        if hidden is None:
            hidden = self._drafted(anchor)
        if not self._device.failed:
            self._device.prepare(self._context)
        proposal, logits, ids = self._score(hidden, anchor, length, draw)
        self._rank(logits, ids)
        return proposal

    def meanwhile(self, drafted: Sequence[int]) -> None:
        """Draft behind the likeliest outcomes of verifying these tokens."""
        self._since, began = [], time.perf_counter()
        self._verifying = Verifying(len(drafted), None, began)
        if self._device.failed or self._guesses is None:
            return
        guesses = _read(*self._guesses)
        said = [guess.chance(token) for token, guess in zip(drafted, guesses, strict=False)]
        self._verifying = Verifying(len(drafted), said, began)
        survival = self.policy.survival(said, self._from_branch)
        found = likeliest(self._anchor, drafted, guesses, survival, self._device.room)
        depth = self.policy.choose(found, self._planned, self.longest, self._device.room)
        if not depth:
            return
        kept = fitting(found[: self.policy.most], depth, self._device.room)
        layout = lay_out(kept, depth, self._draft.config.mask_token_id)
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

    def _landed(self, anchor: int) -> mx.array | None:
        """Hidden states [1, n, H] of the branch that came true, None if none did."""
        launch, self._launch = self._launch, None
        if launch is None:
            return None
        outcome = (*self._since, anchor)
        branches = launch.layout.branches
        known = [branch.tokens for branch in branches]
        self._ready = hit = outcome in known
        start = time.perf_counter()
        try:
            hidden = launch.hidden.result()
        except DeviceError as error:
            self._device.give_up(error)
            return None
        waited = time.perf_counter() - start
        self.policy.landed(hit, sum(branch.chance for branch in branches), waited)
        if not hit:
            return None
        row = launch.layout.rows[known.index(outcome)]
        return mx.array(hidden[None, row : row + launch.layout.masks]).astype(mx.float32)

    def _drafted(self, anchor: int) -> mx.array:
        """Hidden states [1, B - 1, H] of a block of its own."""
        mask = self._draft.config.mask_token_id
        start = time.perf_counter()
        embedded = self._target.embed(mx.array([[anchor] + [mask] * self.longest]))
        hidden = self._draft(embedded, self._context)[:, 1:]
        self.policy.drafted(time.perf_counter() - start)
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
        chances, places = ranking.likeliest(logits, GUESSES)
        self._guesses = chances, places if ids is None else ids[places]
        mx.async_eval(*self._guesses)

    def _drop(self) -> None:
        if self._launch is not None:
            self._launch.hidden.cancel()
            self._launch = None


def _read(chances: mx.array, tokens: mx.array) -> list[Guess]:
    return [Guess(*row) for row in zip(tokens.tolist(), chances.tolist(), strict=True)]
