"""Values are found in files as they are stored, also across the borders of what is read at a time."""

from __future__ import annotations

from tiltyard.tables.erasure.byte_search import digest_of, patterns_of, search_chunks


def test_patterns_are_the_bytes_of_texts_and_numbers_that_are_long_enough() -> None:
    assert patterns_of("ann@example.org") == (b"ann@example.org",)
    assert patterns_of("Zürich") == ("Zürich".encode(),)
    assert patterns_of("short") == () == patterns_of(12345)
    assert patterns_of(1234567) == (b"1234567",)
    assert patterns_of(-(1 << 50)) == (str(-(1 << 50)).encode(), (-(1 << 50)).to_bytes(8, "little", signed=True))


def test_a_pattern_in_two_chunks_is_found_and_each_once() -> None:
    patterns = [(b"needle", "a"), (b"absent", "b"), (b"edl", "c")]
    assert search_chunks([b"xxnee", b"dlexx", b"needle"], patterns) == {"a", "c"}
    assert search_chunks([b"n", b"e", b"e", b"d", b"l", b"e"], patterns) == {"a", "c"}
    assert search_chunks([], patterns) == set() == search_chunks([b"content"], [])


def test_digests_take_the_key_and_the_type() -> None:
    assert digest_of(b"key", "123456") != digest_of(b"key", 123456) != digest_of(b"other", 123456)
    assert digest_of(b"key", "123456") == digest_of(b"key", "123456")
