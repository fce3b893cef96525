"""Token files: documents tokenised once, and mapped into memory by every rank of a node.

    tokens.bin      uint32, all documents one after the other
    starts.bin      int64, index of each document's first token
    counted.bin     uint8, 1 where a token counts in the loss; only where some do not
    index.json      what made them, and what they hold
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from training.chat import Tokens
from training.documents import Document
from training.errors import JobError

NAMES = ("index.json", "tokens.bin", "starts.bin", "counted.bin")
"""All that a folder of them holds; the last one not always."""
_VERSION = 1


@dataclass(frozen=True)
class TokenFiles:
    """An opened folder of token files; the arrays are mapped, not read."""

    tokens: np.ndarray
    """uint32 [tokens]."""
    starts: np.ndarray
    """int64 [documents]."""
    counted: np.ndarray | None
    """uint8 [tokens]; None: all count."""
    highest: int
    """The highest token id."""
    highest_at: str
    """File and row of it."""


def write(folder: Path, encoded: Iterable[tuple[Document, Tokens]], origin: dict[str, Any]) -> dict[str, Any]:
    """Write token files into an empty or missing folder, a document at a time.

    Args:
        encoded: documents with their tokens.
        origin: what the tokens were made from; kept in index.json.

    Returns:
        The contents of index.json.
    """
    folder.mkdir(parents=True, exist_ok=True)
    total = uncounted = documents = 0
    highest, highest_at, begins = -1, "", False
    with open(folder / "tokens.bin", "wb") as ids_file, open(folder / "counted.bin", "wb") as counted_file, \
            open(folder / "starts.bin", "wb") as starts_file:
        for document, (ids, counted) in encoded:
            begins = begins or document.begins
            if begins and len(ids):
                starts_file.write(np.int64(total).tobytes())
                documents, begins = documents + 1, False
            if len(ids) and int(ids.max()) > highest:
                highest, highest_at = int(ids.max()), document.where.brief
            ids_file.write(ids.tobytes())
            counted_file.write(counted.astype(np.uint8).tobytes())
            total, uncounted = total + len(ids), uncounted + int((~counted).sum())
        if begins:  # a part of a file ends before the document's first token: that is the next part's first
            starts_file.write(np.int64(total).tobytes())
            documents += 1
    if not uncounted:
        (folder / "counted.bin").unlink()
    index = {"version": _VERSION, "tokens": total, "documents": documents, "counted": total - uncounted,
             "highest": highest, "highest_at": highest_at, "origin": origin}
    (folder / "index.json").write_text(json.dumps(index, indent=2) + "\n")
    return index


def open_folder(folder: Path) -> TokenFiles:
    """Map the token files of a folder.

    Raises:
        JobError: if it holds none, or one of another size than its index says.
    """
    try:
        index = json.loads((folder / "index.json").read_text())
        total, documents = int(index["tokens"]), int(index["documents"])
    except FileNotFoundError:
        raise JobError(f"training.data.path {folder} holds no token files (index.json); make them with eagleray "
                       "tokenize, or set training.data.kind to what it holds") from None
    except (ValueError, KeyError, TypeError) as error:
        raise JobError(f"training.data.path: {folder / 'index.json'} is damaged; make the token files "
                       "again") from error
    if not total:
        raise JobError(f"training.data.path {folder} holds no tokens")
    counted = _mapped(folder / "counted.bin", np.uint8, total) if index["counted"] < total else None
    return TokenFiles(_mapped(folder / "tokens.bin", np.uint32, total),
                      _mapped(folder / "starts.bin", np.int64, documents), counted,
                      int(index["highest"]), str(index["highest_at"]))


def _mapped(file: Path, dtype: Any, count: int) -> np.ndarray:
    size = file.stat().st_size if file.exists() else 0
    if size != count * np.dtype(dtype).itemsize:
        raise JobError(f"training.data.path: {file} has {size} bytes where index.json says "
                       f"{count * np.dtype(dtype).itemsize}; make the token files again")
    return np.memmap(file, dtype=dtype, mode="r")
