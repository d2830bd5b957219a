"""A DFlash drafter whose draft runs on a device of its own."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from ..models.draft_head import DraftHead
from ..models.target import TargetModel
from .device_draft import DeviceDraft
from .drafter import Context, DFlashDrafter, Streamed
from .work import Report


class DeviceDrafter(DFlashDrafter):
    """Drafts on a device. Where that takes keys and values instead of features, the target's device
    computes them within its own pass, tap by tap.

    Args:
        draft: on a device.
        target: whose embedding and head it borrows.
        head: see `DFlashDrafter`.
    """

    def __init__(self, draft: DeviceDraft, target: TargetModel, head: DraftHead | None = None):
        super().__init__(draft, target, head=head)
        self._device = draft

    def stream(self, taps: Sequence[mx.array]) -> Streamed | None:
        """Keys and values of the anchor and the drafted tokens, if the device takes them."""
        rows = self._device.stream(taps, self.length)
        return None if rows is None else Streamed(rows)

    def report(self) -> Report:
        """What the device has done."""
        return Report(self._device.work())

    def _keep(self, context: Context) -> None:
        if not isinstance(context, Streamed):
            super()._keep(context)
            return
        self._flush()  # what came before
        self._device.append(context.rows, self._context)
