"""What models of texts are made of, small."""

from __future__ import annotations

import json


def bpe_tokenizer(words: list[str]) -> str:
    """The file of a tokenizer that knows these words, the first of which stands for all others."""
    vocabulary = {word: place for place, word in enumerate(words)}
    model = {
        "type": "BPE", "unk_token": words[0], "fuse_unk": False, "vocab": vocabulary,
        "merges": [[word[0], word[1:]] for word in words if len(word) == 2],
    }  # fmt: skip
    return json.dumps({"version": "1.0", "added_tokens": [], "model": model})
