"""Text that every machine with Python has, and a tokenizer trained on it: the standard library's sources."""

from __future__ import annotations

import sysconfig
from pathlib import Path

from ops.errors import CommandError

END_OF_TEXT = "<|endoftext|>"
_CHARACTERS = 2_000_000  # about half a million tokens: more than a rehearsal reads


def write_corpus(folder: Path, vocabulary: int) -> tuple[Path, Path]:
    """Write `stdlib.txt` and a tokenizer folder of `vocabulary` tokens; the same Python gives the same files.

    Returns:
        The text's path and the tokenizer's.

    Raises:
        CommandError: if this Python has no library sources (a zipped or stripped one).
    """
    sources = _sources()
    folder.mkdir(parents=True, exist_ok=True)
    text, tokenizer = folder / "stdlib.txt", folder / "tokenizer"
    text.write_text("\n\n".join(sources), encoding="utf-8")
    _train_tokenizer(sources, vocabulary).save_pretrained(tokenizer)
    return text, tokenizer


def _sources() -> list[str]:
    """Modules in name order, until there is enough; tests and tables of data are left out."""
    library = Path(sysconfig.get_paths()["stdlib"])
    sources, left = [], _CHARACTERS
    for path in sorted(library.glob("*.py")):
        if left <= 0:
            break
        source = path.read_text(encoding="utf-8", errors="ignore")[:left]
        sources.append(source)
        left -= len(source)
    if sum(map(len, sources)) < _CHARACTERS // 4:
        raise CommandError(f"{library} holds too few *.py sources to train on; use a Python with its whole library")
    return sources


def _train_tokenizer(sources: list[str], vocabulary: int):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(sources, trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=[END_OF_TEXT], initial_alphabet=alphabet, show_progress=False))
    return PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=END_OF_TEXT)
