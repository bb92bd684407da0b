"""Time grows in proportion to the length of foreign text: every expression, header and body field.

The subjects are the expressions of all modules and profiles, found by introspection, and the names
of headers in the corpus and the profiles. Additions there are tested without a line here.
"""

import importlib
import inspect
import itertools
import json
import pkgutil
import re
import time
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple, TypeAlias, cast

import pytest

import aiothrottle
from aiothrottle.headers import PROFILES, Items, Json, Profile, parse_rate_limit
from aiothrottle.headers.parse import layouts
from tests.headers.test_header_fuzz import NAMES
from tests.support.reading import NOW

Work: TypeAlias = Callable[[str], object]

LENGTH = 4000
# Seconds of processor time of this thread. What takes less for 4 kB is not quadratic: no machine
# executes 8 million steps in that time.
QUICK = 0.003
# For eight times the length, linear time is 8 times as much, and quadratic time 64 times.
GROWTH = 24

UNITS = [
    *('"', "\\", '"\\', " ", "\t", ",", ";", "=", ":", ".", "-", "/", "@", "(", "[", "{", "<"),
    *("1", "a", "\xe9", "\0", "\n", ", ", "a, ", '"a",', ";a=1", ';a="', "1;w=1,", '"a";r=1,'),
    *('"a";q=1;w=1,', "1:1,", "1/1 ", "a=1;", "1.", "1s", "mon,", "Nov ", '"a":1,', "[1],"),
    "limit=1,",
]
PREFIXES = ["", '"', '1;a="', '{"a":{"a":"']


class Text(NamedTuple):
    """A text of any length: the beginning, the repeated part, the end."""

    beginning: str
    unit: str
    end: str = ""

    def of(self, length: int) -> str:
        room = max(0, length - len(self.beginning) - len(self.end))
        return self.beginning + (self.unit * (room // len(self.unit) + 1))[:room] + self.end


TEXTS = [Text(beginning, unit) for unit in UNITS for beginning in PREFIXES]


def seconds_for(work: Work, text: str, *, runs: int = 1) -> float:
    least = float("inf")
    for _ in range(runs):
        begun = time.thread_time()
        work(text)
        least = min(least, time.thread_time() - begun)
    return least


def slow(work: Work, text: Text, length: int = LENGTH) -> str | None:
    """Return a complaint if eight times the length takes much more than eight times as long."""
    if seconds_for(work, text.of(length)) < QUICK:
        return None
    many = seconds_for(work, text.of(length), runs=3)
    few = seconds_for(work, text.of(length // 8), runs=3)
    if many < QUICK or many < GROWTH * few:
        return None
    return f"{text}: {many:.4f} s for {length} characters, {few:.4f} s for an eighth"


def complaints(works: dict[str, Work], texts: Iterable[Text], length: int = LENGTH) -> list[str]:
    return [
        f"{name}: {complaint}"
        for text in texts
        for name, work in works.items()
        if (complaint := slow(work, text, length)) is not None
    ]


def test_quadratic_time_is_found() -> None:
    assert complaints({"": re.compile("a*b").search}, [Text("", "a")]) != []
    assert complaints({"": re.compile("a*+b").match}, [Text("", "a")]) == []


# ---- expressions ---------------------------------------------------------------------------------

METHODS = {"search", "finditer", "findall", "sub", "subn", "split", "match", "fullmatch"}
parser: Any = importlib.import_module("re._parser")
compiler: Any = importlib.import_module("re._compiler")
CUT = "cut"


def modules() -> Iterator[ModuleType]:
    for found in pkgutil.walk_packages(aiothrottle.__path__, "aiothrottle."):
        if found.name.endswith("__main__"):
            continue
        try:
            yield importlib.import_module(found.name)
        except ModuleNotFoundError as error:
            # A newer Python may lack a driver; the module without it is read on the others.
            if "is not there: pip install" not in str(error):
                raise


@cache
def expressions() -> dict[str, tuple[re.Pattern[str], set[str]]]:
    """Return all expressions by name, with the methods that their modules call on them."""
    found: dict[str, tuple[re.Pattern[str], set[str]]] = {}
    for module in modules():
        source = inspect.getsource(module)
        # Only expressions compiled at the top of a module are found.
        assert not re.search(rf"\bre\.({'|'.join(METHODS)})\(", source), module
        for variable, value in vars(module).items():
            if variable == "__builtins__":  # `_` in it is the last value that a doctest has shown
                continue
            for pattern in filter(None, map(as_text, leaves(value))):
                name = f"{module.__name__}.{variable}: {pattern.pattern[:40]}"
                found[name] = pattern, uses_in(source, variable) or METHODS
    for profile in PROFILES.values():
        for row in profile.limits:
            if isinstance(row, Items):
                found[f"{profile.name}, header: {row.header}"] = row.names, {"fullmatch"}
                found[f"{profile.name}, item: {row.item[:40]}"] = row.each, {"finditer"}
    return found


def leaves(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        value = [*cast("dict[object, object]", value).items()]
    if isinstance(value, list | tuple | set | frozenset):
        for each in cast("Iterable[object]", value):
            yield from leaves(each)
    else:
        yield value


def as_text(found: object) -> re.Pattern[str] | None:
    """Return the same expression, of characters; None if it is not one."""
    if not isinstance(found, re.Pattern):
        return None
    pattern = cast("re.Pattern[str] | re.Pattern[bytes]", found)
    text = pattern.pattern
    if isinstance(text, bytes):
        return re.compile(text.decode("latin-1"), pattern.flags | re.ASCII)
    return re.compile(text, pattern.flags)


def uses_in(source: str, variable: str) -> set[str]:
    """Return the methods that a module calls on a variable, also in a loop over it."""
    names = [variable, *re.findall(rf"\bfor (\w+) in {variable}\b", source)]
    called = re.findall(rf"\b(?:{'|'.join(names)})\.(\w+)", source)
    return METHODS & set(called)


def pieces_of(tree: Any, variant: int) -> list[str]:
    """Make a text that matches, in pieces: a `CUT` stands where something is repeated."""
    pieces: list[str] = []
    for kind, value in tree:
        match str(kind):
            case "LITERAL" | "NOT_LITERAL" | "ANY" | "IN":
                one = compiler.compile(parser.SubPattern(tree.state, [(kind, value)]))
                own = value if str(kind) == "IN" else [(kind, value)]
                chars = ' a1,"-/=_:\t\\@.<Z' + "".join(
                    chr(it) for _, it in own if isinstance(it, int)
                )
                fitting = [char for char in chars if one.match(char)]
                pieces.append(fitting[variant % len(fitting)] if fitting else "a")
            case "BRANCH":
                pieces += pieces_of(value[1][variant % len(value[1])], variant)
            case "SUBPATTERN":
                pieces += pieces_of(value[3], variant)
            case "ATOMIC_GROUP":
                pieces += pieces_of(value, variant)
            case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                least, most, body = value
                pieces += [CUT] * (most > 100) + pieces_of(body, variant) * max(1, least)
            case "ASSERT":  # of a lookahead only the repeated part
                inside = pieces_of(value[1], variant)
                pieces += inside if value[0] < 0 else [CUT] * (CUT in inside)
            case "ASSERT_NOT" | "AT" | "GROUPREF":
                pass
            case _:
                raise AssertionError(f"{kind} in an expression: extend the test")
    return pieces


def hostile_to(pattern: re.Pattern[str]) -> Iterator[Text]:
    """Yield texts that match up to a repetition, continue for long, and end in a mismatch."""
    seen: set[tuple[str, str]] = set()
    for variant in range(3):
        pieces = pieces_of(parser.parse(pattern.pattern, pattern.flags & ~re.UNICODE), variant)
        for cut in (0, *(place for place, piece in enumerate(pieces) if piece is CUT)):
            before = "".join(piece for piece in pieces[:cut] if piece is not CUT)
            after = "".join(piece for piece in pieces[cut:] if piece is not CUT)
            seen.add((before, after))
    for before, after in sorted(seen):
        for unit in {*UNITS, after[:1], after[:2], after, before + after} - {""}:
            for end in {"", after}:
                yield Text(before, unit, end + "\0")


def finding(pattern: re.Pattern[str]) -> Work:
    return lambda text: sum(1 for _ in pattern.finditer(text))


@pytest.mark.parametrize("third", range(3))
def test_expressions_take_linear_time(third: int) -> None:
    for known in ("quotas._ITEM", "values._FORMS", "feed._NAME"):
        assert any(known in name for name in expressions()), known
    slow_ones: list[str] = []
    for name, (pattern, methods) in list(expressions().items())[third::3]:
        work = pattern.fullmatch if methods <= {"match", "fullmatch"} else finding(pattern)
        slow_ones += complaints({name: work}, hostile_to(pattern))
    assert slow_ones == []


# ---- headers -------------------------------------------------------------------------------------


def meaning_of(name: str, profile: Profile | None) -> str:
    """Return kind, owner and field of a header; "" if it is not read."""
    found = (layouts() if profile is None else profile.layouts)[(name,)]
    return str(found.places or "")


def headers_of(profile: Profile | None) -> list[str]:
    """Return names of the corpus and the profiles: one for each meaning."""
    found = {meaning_of(name, profile): name for name in map(str.lower, NAMES)}
    if profile is None:  # one limit with a name is read like any other
        found = {re.sub(r"'limit', '[^']*'", "limit", each): name for each, name in found.items()}
    else:
        found = {each: name for each, name in found.items() if each != meaning_of(name, None)}
    return sorted(name for each, name in found.items() if each)


def reading(name: str, profile: Profile | None) -> Work:
    return lambda text: parse_rate_limit(429, [(name, text)], NOW, None, profile)


@cache
def plain_headers() -> list[str]:
    return headers_of(None)


PROFILED = [profile for profile in PROFILES.values() if profile.limits or profile.milliseconds]


def test_headers_of_all_servers_take_linear_time() -> None:
    known = {"retry-after", "date", "ratelimit", "ratelimit-policy", "x-ratelimit-remaining-usd"}
    assert known <= set(plain_headers())
    works = {name: reading(name, None) for name in plain_headers()}
    assert complaints(works, TEXTS) == []


def test_headers_of_profiles_take_linear_time() -> None:
    names = {profile: headers_of(profile) for profile in PROFILED}
    assert sum(map(bool, names.values())) > 30
    works = {f"{it} of {each.name}": reading(it, each) for each in PROFILED for it in names[each]}
    assert complaints(works, TEXTS[:: len(PREFIXES)]) == []


def many_lines(name: str, vendor: str) -> Work:
    """Read a line for each character, by names that no cache has."""
    numbers = itertools.count()

    def work(text: str) -> object:
        lines = [(name.format(next(numbers)), "1;w=1") for _ in text]
        return parse_rate_limit(429, lines, NOW, None, vendor)

    return work


def test_many_lines_and_long_names_take_linear_time() -> None:
    vendors = ("", "Zendesk", "Salesforce", "Binance")
    names = ("X-RateLimit-Limit", "x-ratelimit-remaining-{}", "RateLimit", "{}" + 4000 * "0")
    works = {
        f"{name[:40]} {vendor}": many_lines(name, vendor) for vendor in vendors for name in names
    }
    assert complaints(works, [Text("", "x")], 400) == []


def sixty_lines(text: str) -> object:
    return parse_rate_limit(429, [(name, text) for name in (2 * plain_headers())[:60]], NOW)


def test_sixty_hostile_lines_are_parsed_quickly() -> None:
    """As many as aiohttp takes, each of 8 kB."""
    for text in TEXTS:
        assert seconds_for(sixty_lines, text.of(2 * LENGTH), runs=3) < 0.1, text


# ---- bodies --------------------------------------------------------------------------------------

# The places of text in a body: all of it, or some part of JSON.
BODIES = [
    *("{}", "[{}", '{{"error":["{}"]}}', '{{"error":{}', "throttled: {}", "<Error><Code>{}"),
    *('[{}"a"]', '{{{}"a":"a"}}', '{{"error":{{"metadata":{{"headers":{{{}"age":"1"}}}}}}}}'),
]


def reading_body(status: int) -> Work:
    return lambda text: parse_rate_limit(status, [], NOW, text)


@pytest.mark.parametrize("status", [200, 429])
def test_bodies_take_linear_time(status: int) -> None:
    works = {"body": reading_body(status)}
    for form in BODIES:
        before, after = (part.replace("{{", "{").replace("}}", "}") for part in form.split("{}"))
        texts = [Text(before, unit, end) for unit in UNITS for end in {after, ""}]
        assert complaints(works, texts, 20_000) == []


def at_the_end_of(path: list[str], found: object, many: int) -> object:
    """Return JSON with that at the path, which has so many members at its first star."""
    if not path:
        return found
    step, *rest = path
    if step != "*":
        return {step: at_the_end_of(rest, found, many)}
    return {f"a{i}": at_the_end_of(rest, found, 1) for i in range(many)}


def many_and_long(row: Json, profile: Profile) -> tuple[Work, Work]:
    keys = (row.limit, row.remaining, row.reset, row.window, row.wait)
    names, path = [str(key) for key in keys if key], row.path.split(".") if row.path else []

    def read(data: object) -> object:
        text = json.dumps(data)
        headers = [(row.header, text)] if row.header else []
        return parse_rate_limit(429, headers, NOW, text, profile)

    def many(text: str) -> object:
        found: Any = at_the_end_of(path, dict.fromkeys(names, 1), len(text) // 300)
        return read({f"b{i}": i for i in range(len(text) // 30)} | found)

    def long(text: str) -> object:
        return read(at_the_end_of(path, dict.fromkeys(names, text), 8))

    return many, long


def test_json_of_profiles_takes_linear_time() -> None:
    slow_ones: list[str] = []
    for profile in PROFILED:
        for row in (it for it in profile.limits if isinstance(it, Json)):
            many, long = many_and_long(row, profile)
            slow_ones += complaints({f"many, {profile.name}": many}, [Text("", "x")], 30_000)
            texts = [Text("", unit) for unit in UNITS]
            slow_ones += complaints({f"long, {profile.name}": long}, texts, 1000)
    assert slow_ones == []
