"""mirror-sd chat: a conversation that keeps its caches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from . import options, view
from .answer import stream

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ..decoding.session import Session
    from ..models.loading import Pair

HELP = "/reset starts anew, /quit or Ctrl-D leaves, Ctrl-C stops an answer"


def chat(
    model: options.Model = "demo",
    draft: options.Draft = None,
    system: options.System = None,
    max_tokens: options.MaxTokens = 1024,
    block_size: options.BlockSize = None,
    no_draft: options.NoDraft = False,
    show_accepted: options.ShowAccepted = False,
    temperature: options.Temperature = 0.0,
    top_p: options.TopP = 0.0,
    top_k: options.TopK = 0,
    min_p: options.MinP = 0.0,
    seed: options.Seed = None,
    draft_window: options.DraftWindow = None,
    draft_vocab: options.DraftVocab = "auto",
    draft_bits: options.Bits = None,
    programs: options.Programs = None,
    device: options.Device = options.DeviceKind.auto,
    mirror: options.Mirror = True,
    dtype: options.Dtype = options.DtypeChoice.auto,
) -> None:
    """Talk with a model. Caches are kept, so each turn costs only its new tokens."""
    from ..api import make_session

    settings = options.sampling(temperature, top_p, top_k, min_p, seed)
    pair, tokenizer = options.load_pair(model, draft, no_draft, dtype, draft_bits, programs, device)
    session = make_session(
        pair,
        block_size=block_size,
        draft_window=draft_window,
        draft_vocab=options.draft_vocab(draft_vocab),
        mirror=mirror,
        sampling=settings,
    )
    opening = [{"role": "system", "content": system}] if system is not None else []
    messages = list(opening)
    view.err.print(HELP, style="dim")
    while (line := _read()) is not None:
        if line == "/reset":
            messages = list(opening)
        elif line:
            messages.append({"role": "user", "content": line})
            _turn(pair, tokenizer, session, messages, max_tokens, show_accepted)


def _read() -> str | None:
    """The user's line, "" for nothing, None at the end."""
    try:
        line = view.out.input(Text("> ", style="bold")).strip()
    except KeyboardInterrupt:
        view.err.print(f"\n{HELP}", style="dim")
        return ""
    except EOFError:
        return None
    return None if line == "/quit" else line


def _turn(
    pair: Pair,
    tokenizer: TokenizerWrapper,
    session: Session,
    messages: list[dict[str, str]],
    max_tokens: int,
    show_accepted: bool,
) -> None:
    """Answer the last message and append the answer, as far as it came."""
    from ..decoding.prompt import chat_tokens
    from ..errors import PromptError

    pieces: list[str] = []
    try:
        tokens = chat_tokens(tokenizer, messages)
        for response in stream(pair, tokenizer, tokens, max_tokens, session, show_accepted):
            pieces.append(response.text)
    except KeyboardInterrupt:
        view.err.print("stopped", style="dim")
    except PromptError as error:
        messages.pop()
        view.show_error(f"{error}; /reset starts a new conversation")
        return
    messages.append({"role": "assistant", "content": "".join(pieces)})
    s = session.statistics
    view.err.print(
        f"{s.tokens} tokens, {s.tokens_per_second:.1f} tok/s, acceptance length "
        f"{s.acceptance_length:.2f}, prompt {s.prompt_tokens} tokens ({s.reused_tokens} reused)",
        style="dim",
    )
