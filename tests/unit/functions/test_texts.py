"""Functions of texts: chunkers, languages, quality, and what identifies persons."""

from __future__ import annotations

import random
import time
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiltyard.functions import (
    ReadyMade,
    chunk_markdown,
    chunk_sentences,
    chunk_tokens,
    chunk_words,
    detect_language,
    find_pii,
    list_functions,
    mask_pii,
    measure_text,
)
from tiltyard.functions.pii import is_luhn
from tiltyard.functions.ready_made import Takes

PAGE = """---
Before any heading.

# Tilt *yards*

A place where knights
ran at each other.

## Rules

- one
- two

```python
# no heading

x = 1
```

| a | b |
|---|---|

# End ##
"""


def parts(function: ReadyMade, text: str) -> list[str]:
    return [chunk["chunk"] for chunk in function(text)]


def test_words_are_cut_into_chunks_that_overlap() -> None:
    assert parts(chunk_words(size=3, overlap=1), " a b  c d\ne ") == ["a b  c", "c d\ne"]
    assert parts(chunk_words(size=3, overlap=0), "a b c d e") == ["a b c", "d e"]
    assert chunk_words(" \n ") == []


def test_sentences_are_whole_and_abbreviations_end_none() -> None:
    text = "Dr. J. Doe came, e.g. by car. He left (at 5.30)! Why? “No.” Then…  it rained.\n\nA new part"
    one_each = [
        "Dr. J. Doe came, e.g. by car.",
        "He left (at 5.30)!",
        "Why?",
        "“No.”",
        "Then…  it rained.",
        "A new part",
    ]
    assert parts(chunk_sentences(size=8), text) == [
        one_each[0],
        "He left (at 5.30)! Why? “No.”",
        "Then…  it rained.\n\nA new part",
    ]
    assert [part for each in one_each for part in parts(chunk_sentences, each)] == one_each
    assert parts(chunk_sentences(size=4, overlap=1), "A a. Bb. C c. D.") == ["A a. Bb.", "Bb. C c. D."]
    assert parts(chunk_sentences(size=2), "A long sentence of words. B.") == ["A long", "sentence of", "words. B."]
    assert parts(chunk_sentences(size=1), "今日は晴れ。明日は雨\uff01") == ["今日は晴れ。", "明日は雨\uff01"]


def test_markdown_is_cut_at_headings_and_blocks_are_whole() -> None:
    chunks = chunk_markdown(size=12)(PAGE)
    assert [(chunk["headings"], chunk["chunk"]) for chunk in chunks] == [
        ([], "---\nBefore any heading."),
        (["Tilt *yards*"], "# Tilt *yards*\n\nA place where knights\nran at each other."),
        (["Tilt *yards*", "Rules"], "## Rules\n\n- one\n- two"),
        (["Tilt *yards*", "Rules"], "```python\n# no heading\n\nx = 1\n```"),
        (["Tilt *yards*", "Rules"], "| a | b |\n|---|---|"),
        (["End"], "# End ##"),
    ]
    assert chunk_markdown("```\n# open fence")[0]["headings"] == []


def test_tokens_are_those_of_a_model_and_characters_stay_whole() -> None:
    chunks = chunk_tokens(tokenizer="wordllama", size=4, overlap=1)("Hello wörld 日本 😀!")
    assert (
        "".join(parts(chunk_tokens(tokenizer="wordllama", size=4, overlap=0), "Hello wörld 日本 😀!"))
        == "Hello wörld 日本 😀!"
    )
    assert "😀" in [chunk["chunk"].strip() for chunk in chunks]


@settings(max_examples=60, deadline=None)
@given(
    text=st.text(alphabet=st.sampled_from("ab.!# \n`-é日。"), max_size=200),
    size=st.integers(1, 9),
    overlap=st.integers(0, 8),
)
def test_chunks_have_their_positions_and_lose_no_word(text: str, size: int, overlap: int) -> None:
    overlap = min(overlap, size - 1)
    token_chunks = chunk_tokens(tokenizer="wordllama", size=size, overlap=overlap)
    for function in (chunk_words, chunk_sentences, chunk_markdown):
        chunks = function(size=size, overlap=overlap)(text)
        check_positions(text, chunks)
        assert all(len(chunk["chunk"].split()) <= size for chunk in chunks)
        covered = [position for chunk in chunks for position in range(chunk["start"], chunk["end"])]
        assert {position for position, each in enumerate(text) if not each.isspace()} <= set(covered)
    check_positions(text, token_chunks(text))


def check_positions(text: str, chunks: list[dict[str, object]]) -> None:
    assert [chunk["number"] for chunk in chunks] == list(range(len(chunks)))
    assert all(text[chunk["start"] : chunk["end"]] == chunk["chunk"] != "" for chunk in chunks)  # type: ignore[misc]
    starts = [chunk["start"] for chunk in chunks]
    assert starts == sorted(set(starts))  # type: ignore[type-var]


SENTENCES = dict(line.split(": ", 1) for line in (Path(__file__).parent / "sentences.txt").read_text().splitlines())


def test_languages_of_sentences_are_told_and_those_of_what_says_nothing_are_not() -> None:
    told = detect_language(pa.array(list(SENTENCES.values()))).to_pylist()
    assert dict(zip(SENTENCES, told, strict=True)) == {language: language for language in SENTENCES}
    assert [detect_language(text) for text in ("", "12345 !?", "Tiltyard", "de", "qwrt zxcv bnmp")] == [None] * 5


FOUND = """Write to Ada.Lovelace+x@mail.example.org or <b@x.io>;
call +49 (0)30 1234-567, (212) 555-0123 or 030/12345678.
Cards: 4111 1111 1111 1111, 378282246310005. IBAN DE89 3704 0044 0532 0130 00, GB82WEST12345698765432.
Hosts 192.168.0.1, 2001:db8::8a2e:370:7334."""


def test_what_identifies_persons_is_found_and_masked() -> None:
    found = find_pii(FOUND)
    assert [(each["kind"], each["text"]) for each in found] == [
        ("email", "Ada.Lovelace+x@mail.example.org"), ("email", "b@x.io"), ("phone", "+49 (0)30 1234-567"),
        ("phone", "(212) 555-0123"), ("phone", "030/12345678"), ("card", "4111 1111 1111 1111"),
        ("card", "378282246310005"), ("iban", "DE89 3704 0044 0532 0130 00"), ("iban", "GB82WEST12345698765432"),
        ("ip", "192.168.0.1"), ("ip", "2001:db8::8a2e:370:7334"),
    ]  # fmt: skip
    assert all(FOUND[each["start"] : each["end"]] == each["text"] for each in found)
    assert find_pii(mask_pii(FOUND)) == [] and "[card], [card]. IBAN [iban], [iban]." in mask_pii(FOUND)
    assert mask_pii(kinds=["ip"], mask="x")("a@b.org 10.0.0.1") == "a@b.org x"


@pytest.mark.parametrize(
    "text",
    [
        "Version 1.2.3.4.5 of 2024-01-15, 12/05/2024 at 12:30:45, 3.14159265 and 1,234,567 of 2000000",
        "4111 1111 1111 1112, 1234567890123, DE89 3704 0044 0532 0130 01, XX89370400440532013000",
        "a@b, @name, x@y.z, std::vector, 999.1.1.1, ISBN 978-3-16-148410-0, .a.@x.org",
        "id 5f4dcc3b5aa765d61d8327deb882cf99, order 20240115-0001",
    ],
)
def test_what_only_looks_alike_is_not_found(text: str) -> None:
    assert find_pii(text) == []


def test_numbers_with_a_check_digit() -> None:
    assert is_luhn("79927398713") and not any(is_luhn(f"7992739871{digit}") for digit in "012456789")


def test_prose_passes_and_what_is_unlike_it_does_not() -> None:
    words = random.Random(7).choices(
        ["river", "stone", "walked", "under", "every", "morning", "because", "people", "called", "quiet", "house"], k=80
    )
    prose = " ".join(words) + "."
    measures = measure_text(prose)
    assert (measures["words"], measures["passes"], measures["repeated_words"] < 0.1) == (80, True, True)
    spoilt = {
        "words": "too short",
        "mean_word_length": "a b " * 60,
        "alphabetic_words": prose + " 123" * 60,
        "symbols_per_word": prose + " word#" * 40,
        "bullet_lines": "\n".join(f"- {word} {number}x" for number, word in enumerate(words)),
        "ellipsis_lines": "\n".join(f"{' '.join(words[start : start + 4])} ..." for start in range(0, 80, 4)),
        "repeated_lines": f"{prose}\n" * 3,
        "repeated_words": f"{prose} {prose}",
    }
    assert {name: measure_text(text)["passes"] for name, text in spoilt.items()} == dict.fromkeys(spoilt, False)
    assert measure_text("")["words"] == 0 and measure_text(min_words=2)("Quiet morning here")["passes"]


@pytest.mark.parametrize(
    "part", [".", "@", "a@", "(", "1 ", "#", "`", "\n", ": ", "AA11 ", "1.1.", "+1", "a.", "é", " \t"]
)
def test_no_text_takes_long(part: str) -> None:
    text = part * (20_000 // len(part))
    for function in list_functions():
        if function.takes is Takes.TEXT and function.name not in ("embed_text", "chunk_tokens"):
            began = time.process_time()
            with suppress(ValueError):  # of more chunks than there may be
                function(text)
            assert time.process_time() - began < 1, f"{function.name} of {part!r}"
