"""Every file: no text that is true on one machine only, and no replaced words."""

import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import aiothrottle

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
FOLDERS = ("aiothrottle", "benchmarks", "docs", "examples", "scripts", "tests", ".ci", ".github")

# In two parts each, so that this file is none of them.
UNWANTED = {
    "a home folder": re.compile("/(?:" + "home|Users)/[a-z]|/" + "root/"),
    "a package index": re.compile(
        "py" + "pi[./]|python" + "hosted|index" + "-url|/sim" + "ple/", re.IGNORECASE
    ),
    "a lock file's source": re.compile("source = {" + " registry"),
}


def texts() -> Iterator[tuple[Path, str]]:
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()]
    for path in [*files, *(path for path in ROOT.glob("*.*") if path.is_file())]:
        if path.name == "uv.lock" or {"__pycache__", "_build"} & set(path.parts):
            continue
        try:
            yield path, path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


def complaints(text: str) -> list[str]:
    return [name for name, pattern in UNWANTED.items() if pattern.search(text)]


def test_no_file_names_a_machine_or_an_index() -> None:
    found = {str(path.relative_to(ROOT)): complaints(text) for path, text in texts()}
    assert len(found) > 100
    assert {path: what for path, what in found.items() if what} == {}
    assert all(map(complaints, ["/" + "home/me/x", "https://py" + "pi.org/x", "index" + "-url="]))


def test_lock_file_is_not_committed() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("this is no checkout")
    assert "uv.lock" in (ROOT / ".gitignore").read_text(encoding="utf-8").split()
    assert subprocess.check_output(["git", "ls-files", "uv.lock"], cwd=ROOT) == b""


def test_mutation_testing_names_files_that_exist() -> None:
    mutmut = PROJECT["tool"]["mutmut"]
    named = mutmut["only_mutate"] + mutmut["pytest_add_cli_args_test_selection"]
    assert [name for name in named if not any(ROOT.glob(name))] == []


def test_version_is_the_same_in_changelog_and_citation() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (\S+) - ", changelog, re.MULTILINE)[0] == aiothrottle.__version__
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {aiothrottle.__version__}\n" in citation


def bounds(requirements: list[str]) -> dict[str, str]:
    """Return the lower bound of each package, without its markers."""
    parted = (requirement.partition(";")[0].partition(">=") for requirement in requirements)
    return {name: bound for name, _, bound in parted}


def test_group_test_has_the_bounds_of_the_extras() -> None:
    """The lower bounds given to users are those that the tests run with: see `.ci/run`."""
    extras = PROJECT["project"]["optional-dependencies"]
    group = bounds(PROJECT["dependency-groups"]["test"])
    # The SDK, which the tests need, brings the API of its own version.
    group["opentelemetry-api"] = group["opentelemetry-sdk"]
    # The extra is installed as it is.
    group |= bounds(extras["plot"])
    given = bounds([each for requirements in extras.values() for each in requirements])
    assert all(given.values())
    assert given == {name: group[name] for name in given}


# Words that have been replaced, with their replacements: one thing has one name.
REPLACED = {
    "laws?": "algorithm",
    "lanes?": "queue",
    "hast[ey]|hasty": "prefetch",
    "heeds?": "server quota",
    "errands?": "task",
    "hears": "receives",
    "lets go": "grants",
    "stand-?ins?": "fallback, substitute",
    "time-outs?": "timeout",
    "verbs?": "method",
    "RollingWindow|SlidingWindow": "SlidingWindowLog, SlidingWindowCounter",
    "ClientThrottling": "AdaptiveThrottling",
    # Attributes and stored fields keep their names.
    r"(?<!\.)told": "reported, notified, or the object itself",
    "whoever|whom": "the waiter, client or process",
    "moments?": "instant, time",
    "crowds?": "waiters, workers",
    r'(?<![."])(?:stamps?|stamped)': "timestamp",
    "figures": "metrics, results, statistics",
}


def test_replaced_words_are_not_used() -> None:
    # Texts of servers are as the servers wrote them.
    others = {Path(__file__).resolve(), ROOT / "tests" / "corpus", ROOT / "docs" / "pictures"}
    patterns = {word: re.compile(rf"\b(?:{word})\b", re.IGNORECASE) for word in REPLACED}
    one_of_them = re.compile(rf"\b(?:{'|'.join(REPLACED)})\b", re.IGNORECASE)
    found = [
        f"{path.relative_to(ROOT)}: write {REPLACED[word]}, not {match[0]!r}"
        for path, text in texts()
        if not others & {path.resolve(), *path.parents} and one_of_them.search(text)
        for word, pattern in patterns.items()
        if (match := pattern.search(text))
    ]
    assert found == []
