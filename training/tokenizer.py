"""The tokenizer of the data, and whether its tokens mean to the model what the model has learnt."""

from __future__ import annotations

import hashlib
from typing import Any

from transformers import AutoTokenizer

from training import model_folder
from training.config import DataConfig, ModelConfig
from training.errors import JobError, first_line

_SHARED = 0.9
"""Of the model's own tokens, the fraction that another tokenizer must know."""


def open_tokenizer(data: DataConfig, model: ModelConfig) -> tuple[str, Any, str]:
    """Name, tokenizer and a digest of its files: `data.tokenizer`, or else the model's own.

    Raises:
        JobError: if it cannot be had, or has no end-of-text token.
    """
    source = model_folder.of_tokenizer(data, model)
    folder = model_folder.small_files(source)
    what = f"{source.setting} {source.name}"
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError, KeyError) as error:
        raise JobError(f"{what} is no tokenizer that transformers can read: {first_line(error)}") from error
    if tokenizer.eos_token_id is None:
        raise JobError(f"{what} has no end-of-text token to put between documents")
    digest = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        if file.is_file() and not file.name.endswith((".safetensors", ".index.json")):
            digest.update(file.name.encode() + file.read_bytes())
    return source.name, tokenizer, digest.hexdigest()[:16]


def check_matches(tokenizer: Any, data: DataConfig, model: ModelConfig) -> None:
    """Compare `data.tokenizer` with that which pretrained weights have learnt with. More tokens may be in it.

    A highest id below the vocabulary's end says little: two tokenizers of one size can share no word.

    Raises:
        JobError: naming a token with two ids, or how many are unknown.
    """
    if not data.tokenizer or model.weights == "random":
        return
    folder = model_folder.small_files(model_folder.of_model(model))
    try:
        own = AutoTokenizer.from_pretrained(folder).get_vocab()
    except (OSError, ValueError, KeyError):
        return  # a model without a tokenizer of its own
    other = tokenizer.get_vocab()
    what = f"training.data.tokenizer {data.tokenizer} does not match training.model.name {model.name}"
    differ = (token for token, number in own.items() if other.get(token, number) != number)
    moved = min(differ, key=own.__getitem__, default=None)
    if moved is not None:
        raise JobError(f"{what}: token {moved!r} is {other[moved]} and not {own[moved]}; remove it, and the "
                       "model's own is used")
    known = sum(token in other for token in own)
    if known < _SHARED * len(own):
        raise JobError(f"{what}: it knows {known} of the model's {len(own)} tokens; remove it, and the model's own "
                       "is used")
