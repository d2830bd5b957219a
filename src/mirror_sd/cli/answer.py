"""An answer on the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from . import view

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ..api import GenerationResponse
    from ..decoding.session import Session
    from ..decoding.trace import TraceWriter
    from ..models.loading import Pair


def stream(
    pair: Pair,
    tokenizer: TokenizerWrapper,
    tokens: list[int],
    max_tokens: int,
    session: Session,
    show_accepted: bool,
    stop: Sequence[str] = (),
    trace: TraceWriter | None = None,
) -> Iterator[GenerationResponse]:
    """Answer a prompt and show each token before passing it on."""
    from ..api import stream_generate

    with view.Answer(show_accepted) as shown:
        for response in stream_generate(
            pair,
            tokenizer,
            tokens,
            max_tokens,
            session=session,
            stop=stop,
            trace=trace,
            prompt_progress_callback=shown.prefill,
        ):
            shown.add(response)
            yield response
