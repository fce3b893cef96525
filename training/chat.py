"""Token ids of a document, and which of them count in the loss: of a chat only the answers."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from transformers.utils.chat_template_utils import render_jinja_template

from training.documents import Document, Place
from training.errors import JobError, first_line

Tokens = tuple[np.ndarray, np.ndarray]
"""(ids uint32 [n], counted bool [n])."""


def encode(document: Document, tokenizer: Any) -> Tokens:
    """The document's tokens, with the tokenizer's end-of-text token after its last piece.

    Raises:
        JobError: naming the row, if it cannot be told which tokens are answers.
    """
    value = document.value
    if isinstance(value, list):
        ids, counted = _chat(value, tokenizer, document.where)
    elif isinstance(value, tuple):
        prompt, answer = (tokenizer(part, add_special_tokens=False, verbose=False)["input_ids"] for part in value)
        ids, counted = [*prompt, *answer], [False] * len(prompt) + [True] * len(answer)
    else:
        ids = tokenizer(value, add_special_tokens=False, verbose=False)["input_ids"]
        counted = [True] * len(ids)
    end = tokenizer.eos_token_id
    if document.ends and not (isinstance(value, list) and ids and ids[-1] == end):
        ids, counted = [*ids, end], [*counted, not isinstance(value, list)]
    return np.asarray(ids, dtype=np.uint32), np.asarray(counted, dtype=bool)


def check_template(tokenizer: Any, name: str) -> None:
    """Raises JobError if the tokenizer cannot render a chat, or not place its tokens in it."""
    if not tokenizer.chat_template:
        raise JobError(f"training.data.rows messages: tokenizer {name} has no chat template; set "
                       "training.data.tokenizer to that of an instruct model, or use rows: prompt")
    if not tokenizer.is_fast:
        raise JobError(f"training.data.rows messages: tokenizer {name} cannot say which characters a token stands "
                       "for, so answers cannot be told apart; use a fast tokenizer")


def _chat(messages: list[Any], tokenizer: Any, where: Place) -> tuple[list[int], list[bool]]:
    if not all(isinstance(m, dict) and "role" in m and "content" in m for m in messages):
        raise JobError(f"training.data.path: {where}: each message must have a role and a content")
    if not any(m["role"] == "assistant" for m in messages):
        raise JobError(f"training.data.path: {where} has no message of the assistant, so nothing to learn")
    try:
        if re.search(r"\{%-?\s*generation\s*-?%\}", str(tokenizer.chat_template)):
            whole, answers = _marked(messages, tokenizer)
        else:
            whole, answers = _by_prefixes(messages, tokenizer, where)
    except JobError:
        raise
    except Exception as error:  # a template is a program of its own and raises what it likes
        why = first_line(error)
        raise JobError(f"training.data.path: {where}: the chat template refuses it ({why})") from error
    found = tokenizer(whole, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    counted = [any(low <= start < high for low, high in answers) for start, _ in found["offset_mapping"]]
    return list(found["input_ids"]), counted


Spans = list[tuple[int, int]]


def _marked(messages: list[Any], tokenizer: Any) -> tuple[str, Spans]:
    """Answers are what the template's generation blocks hold.

    Not the tokenizer's own assistant mask: where a block ends in a space, it runs on to the end of the chat.
    """
    rendered, spans = render_jinja_template(
        conversations=[messages], chat_template=tokenizer.chat_template, return_assistant_tokens_mask=True,
        **tokenizer.special_tokens_map)
    return rendered[0], [(int(low), int(high)) for low, high in spans[0]]


def _by_prefixes(messages: list[Any], tokenizer: Any, where: Place) -> tuple[str, Spans]:
    """Answers are what a rendering has beyond that of the messages before, opened for the assistant."""
    whole = tokenizer.apply_chat_template(messages, tokenize=False)
    answers = []
    for number, message in enumerate(messages):
        if message["role"] == "assistant":
            before = tokenizer.apply_chat_template(messages[:number], tokenize=False, add_generation_prompt=True)
            after = tokenizer.apply_chat_template(messages[:number + 1], tokenize=False)
            if not (whole.startswith(after) and after.startswith(before)):
                raise JobError(f"training.data.path: {where}: the chat template renders message {number + 1} "
                               "differently on its own, so answers cannot be told apart; use a template with a "
                               "generation block")
            answers.append((len(before), len(after)))
    return whole, answers
