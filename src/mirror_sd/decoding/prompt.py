"""Messages as prompt tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..errors import PromptError


def chat_tokens(tokenizer: TokenizerWrapper, messages: Sequence[dict[str, Any]]) -> list[int]:
    """The conversation in the model's chat template, ready for the assistant's answer.

    Raises:
        PromptError: the model has no chat template, or it refuses these messages.
    """
    if not tokenizer.has_chat_template:
        raise PromptError("this model has no chat template; use --raw to continue plain text")
    try:
        return list(tokenizer.apply_chat_template(list(messages), add_generation_prompt=True))
    except Exception as error:  # templates raise whatever their author chose
        raise PromptError(f"the model's chat template refuses the messages: {error}") from error
