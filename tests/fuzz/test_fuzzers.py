"""The programs for a fuzzer, without one: they read what they begin with, and random data."""

import importlib
import random
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

CORPUS = Path(__file__).parent / "corpus"


class Provider:
    """The part of `atheris.FuzzedDataProvider` that the programs use: random data from a seed."""

    def __init__(self, seed: bytes) -> None:
        self._random = random.Random(seed)
        self.ConsumeIntInRange = self._random.randint

    def ConsumeBool(self) -> bool:  # noqa: N802 - the names are those of atheris
        return self._random.random() < 0.5

    def ConsumeBytes(self, count: int) -> bytes:  # noqa: N802
        return self._random.randbytes(count)

    def ConsumeUnicode(self, count: int) -> str:  # noqa: N802
        return "".join(chr(self._random.randrange(sys.maxunicode)) for _ in range(count))


def instrument_imports(*, include: list[str]) -> AbstractContextManager[None]:  # noqa: ARG001
    return nullcontext()


@pytest.fixture
def program(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of that name, imported with a substitute for atheris."""
    atheris = {"instrument_imports": instrument_imports, "FuzzedDataProvider": Provider}
    monkeypatch.setitem(sys.modules, "atheris", SimpleNamespace(**atheris))
    name = f"tests.fuzz.{request.param}"
    monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module(name)


@pytest.mark.parametrize("program", ["lines", "rates", "stores"], indirect=True)
def test_corpus_of_a_fuzzer_is_read(program: Any) -> None:
    corpus = sorted((CORPUS / program.__name__.rpartition(".")[2]).iterdir())
    assert corpus
    for file in corpus:
        program.read(file.read_bytes())


@pytest.mark.parametrize("program", ["headers", "lines", "rates", "stores"], indirect=True)
def test_fuzzer_reads_random_data(program: Any) -> None:
    draw = random.Random(program.__name__)
    for _ in range(100):
        program.read(draw.randbytes(draw.randrange(60)))
