"""tiktoken as the counter of `aiothrottle.llm`."""

from typing import Any

import pytest

from aiothrottle import llm

tiktoken: Any = pytest.importorskip("tiktoken")


def test_tiktoken_counts_texts_with_special_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    # An encoding of single bytes, since those of the models would be downloaded.
    encoding = tiktoken.Encoding(
        "bytes",
        pat_str=r"\w+|\W",
        mergeable_ranks={bytes([i]): i for i in range(256)},
        special_tokens={"<|endoftext|>": 256},
    )
    asked: list[str] = []

    def known(name: str) -> object:
        asked.append(name)
        if name == "unknown":
            raise KeyError(name)
        return encoding

    monkeypatch.setattr(tiktoken, "encoding_for_model", known)
    monkeypatch.setattr(tiktoken, "get_encoding", known)
    count = llm.tiktoken_counter("gpt-4o")
    assert (count("abc"), count("<|endoftext|>"), count("")) == (3, 13, 0)
    assert asked == ["gpt-4o"]  # loaded once
    assert llm.tiktoken_counter("unknown")("abc") == 3
    assert asked[-1] == "o200k_base"
