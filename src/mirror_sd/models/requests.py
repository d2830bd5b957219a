"""Prompts as text, and how they become tokens."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..errors import PromptError

Message = tuple[str, str]  # role, content


@dataclass(frozen=True)
class Request:
    """What a model is asked.

    Attributes:
        messages: a chat that ends with the user; empty for text to be continued.
        text: to be continued as it is, without a chat template.
        kind: what sort of prompt, for reports.
    """

    messages: tuple[Message, ...] = ()
    text: str = ""
    kind: str = "text"

    def encode(self, tokenizer: TokenizerWrapper) -> list[int]:
        """Token ids as the model is given them; the last message alone where it has no chat
        template.
        """
        if not self.messages:
            return list(tokenizer.encode(self.text))
        if not tokenizer.has_chat_template:
            return list(tokenizer.encode(self.messages[-1][1]))
        messages = [{"role": role, "content": content} for role, content in self.messages]
        try:
            return list(tokenizer.apply_chat_template(messages, add_generation_prompt=True))
        except Exception as error:  # templates raise whatever their author chose
            raise PromptError(f"the model's chat template refuses a prompt: {error}") from error

    @property
    def label(self) -> str:
        """The last thing that is said, for messages and tables."""
        return self.messages[-1][1] if self.messages else self.text


def asked(text: str, kind: str = "text") -> Request:
    """A chat of one message by the user."""
    return Request((("user", text),), kind=kind)


def read(file: Path) -> list[Request]:
    """Prompts of a text file, one a line; or of a JSONL file whose rows have `prompt` (a string),
    `messages` (a chat that ends with the user) or `text` (to be continued), and may have `kind`.

    Raises:
        PromptError: the file cannot be read, a row makes no sense, or there is none.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PromptError(f"cannot read prompts from {file}: {error}") from error
    jsonl = file.suffix == ".jsonl"
    found = [
        _row(file, number, line) if jsonl else asked(line.strip())
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]
    if not found:
        raise PromptError(f"{file} holds no prompt")
    return found


def _row(file: Path, number: int, line: str) -> Request:
    try:
        row: Any = json.loads(line)
        kind = str(row.get("kind", "text"))
        if isinstance(row.get("text"), str):
            return Request(text=row["text"], kind=kind)
        chat = row.get("messages") or [{"role": "user", "content": row["prompt"]}]
        messages = tuple((message["role"], message["content"]) for message in chat)
        if not all(isinstance(part, str) for message in messages for part in message):
            raise TypeError("content is no text")
        return Request(messages, kind=kind)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PromptError(
            f"{file}, line {number}: a row needs `prompt`, `messages` or `text` ({error})"
        ) from error
