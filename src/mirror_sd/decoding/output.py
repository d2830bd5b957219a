"""Tokens as text, and where an answer ends."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from mlx_lm.tokenizer_utils import TokenizerWrapper


def until(end_tokens: Collection[int]) -> Callable[[list[int], int], tuple[list[int], str | None]]:
    """A session's `cut` by end tokens and length alone, for those who want no text."""

    def cut(tokens: list[int], left: int) -> tuple[list[int], str | None]:
        for index, token in enumerate(tokens):
            if token in end_tokens:
                return tokens[: index + 1], "stop"
        return tokens, "length" if len(tokens) == left else None

    return cut


class Output:
    """Turns tokens into text segments that never split a character, and finds the answer's end.

    Args:
        tokenizer: mlx-lm's wrapper; its streaming detokenizer does the work.
        end_tokens: ids that end the answer; they are no text.
        stop: strings that end it; neither they nor what follows is text. They may lie across any
            number of tokens, so text that could begin one is held back.
    """

    def __init__(
        self, tokenizer: TokenizerWrapper, end_tokens: Collection[int], stop: Sequence[str] = ()
    ):
        self._detokenizer = tokenizer.detokenizer
        self._detokenizer.reset()
        self._end_tokens = end_tokens
        self._stop = [text for text in stop if text]
        self._held = ""  # text that is final but may begin a stop string
        self.segments: list[str] = []  # of the tokens last taken, one each

    def take(self, tokens: Sequence[int], left: int) -> tuple[list[int], str | None]:
        """Take tokens in, up to the answer's end.

        Args:
            tokens: the next tokens.
            left: how many may still come, at least as many as there are.

        Returns:
            Those that belong to the answer, and why it ends with them: "stop", "length", or None.
        """
        self.segments = []
        for index, token in enumerate(tokens):
            if token in self._end_tokens:
                self.segments.append(self._finish())
                return list(tokens[: index + 1]), "stop"
            self._detokenizer.add_token(token)
            text, stopped = self._release(self._detokenizer.last_segment)
            self.segments.append(text)
            if stopped:
                return list(tokens[: index + 1]), "stop"
        if len(tokens) == left:
            self.segments[-1] += self._finish()
            return list(tokens), "length"
        return list(tokens), None

    def _finish(self) -> str:
        """What was held back; a stop string may still complete in it."""
        self._detokenizer.finalize()
        text, stopped = self._release(self._detokenizer.last_segment)
        return text if stopped else text + self._flush()

    def _flush(self) -> str:
        held, self._held = self._held, ""
        return held

    def _release(self, text: str) -> tuple[str, bool]:
        """Add text; returns what is safe to show, and whether a stop string has completed."""
        text = self._flush() + text
        found = [at for at in (text.find(stop) for stop in self._stop) if at >= 0]
        if found:
            return text[: min(found)], True
        keep = max((_overlap(text, stop) for stop in self._stop), default=0)
        cut = len(text) - keep
        self._held = text[cut:]
        return text[:cut], False


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
