"""Tokens as text, piece by piece."""

from __future__ import annotations

from mlx_lm.tokenizer_utils import TokenizerWrapper


class TextStream:
    """Turns tokens into text segments that never split a character.

    Args:
        tokenizer: mlx-lm's wrapper; its streaming detokenizer does the work.
    """

    def __init__(self, tokenizer: TokenizerWrapper):
        self._detokenizer = tokenizer.detokenizer
        self._detokenizer.reset()

    def add(self, token: int) -> str:
        """The text that has become final with this token; may be empty."""
        self._detokenizer.add_token(token)
        return self._detokenizer.last_segment

    def finish(self) -> str:
        """What was held back."""
        self._detokenizer.finalize()
        return self._detokenizer.last_segment
