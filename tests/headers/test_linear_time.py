"""Time grows in proportion to the length of foreign text: every expression, header and body field.

The subjects are found by introspection: the expressions of all modules and profiles, and the names
in the tables of `aiothrottle.headers`. Additions there are tested without a line here.
"""

import ast
import importlib
import inspect
import json
import pkgutil
import re
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple, TypeAlias, cast

import pytest

import aiothrottle
import aiothrottle.headers
from aiothrottle._http.quotas import ServerQuotas
from aiothrottle.headers import PROFILES, Items, Json, Limit, Profile, parse_rate_limit
from aiothrottle.headers.fields import FAMILIES, collect, layouts
from tests.reading import NOW

Work: TypeAlias = Callable[[str], object]

KILO = 1024
LENGTHS = [KILO << doubling for doubling in range(7)]  # 1, 2, 4, ... 64 kB
# Seconds of processor time. What takes less for 8 kB is not quadratic: no machine executes 33
# million steps in that time.
QUICK = 0.001
MOST = 0.25
# For eight times the length, linear time is 8 times as much, and quadratic time 64 times.
GROWTH = 24

UNITS = [
    *('"', "\\", '\\"', '"\\', " ", "\t", ",", ";", "=", ":", ".", "-", "_", "/", "@", "(", ")"),
    *("[", "]", "{", "}", "<", ">", "1", "a", "A", "\xe9", "\0", "\n", ", ", "; ", "1,", "a, "),
    *('"a",', ";a=1", ';a="', "1;w=1,", '"a";r=1,', '"a";q=1;w=1,', "1:1,", "1/1 ", "a=1;", "1."),
    *("1s", "mon,", "Nov ", "//", "a.", '"a":1,', "{}", "[1],", "limit=1,", "total="),
]
PREFIXES = ["", '"', '1;a="', '{"a":{"a":"']


class Text(NamedTuple):
    """A text of any length: the beginning, the repeated part, the end."""

    beginning: str
    unit: str
    end: str = ""

    def of(self, length: int) -> str:
        room = length - len(self.beginning) - len(self.end)
        repeated = self.unit * (room // len(self.unit) + 1)
        return self.beginning + repeated[: max(0, room)] + self.end


def seconds_for(work: Work, text: str, *, runs: int = 1) -> float:
    least = float("inf")
    for _ in range(runs):
        begun = time.thread_time()
        work(text)
        least = min(least, time.thread_time() - begun)
    return least


def assert_linear(work: Work, text: Text) -> None:
    """Compare the times at all lengths, unless negligible; on a busy machine measure twice."""
    if seconds_for(work, text.of(8 * KILO)) < QUICK:
        return
    for runs in (1, 5):
        complaint = growth(work, text, runs)
        if complaint is None:
            return
    raise AssertionError(f"{text}: {complaint}")


def growth(work: Work, text: Text, runs: int) -> str | None:
    seconds: dict[int, float] = {}
    for length in LENGTHS:
        took = seconds[length] = seconds_for(work, text.of(length), runs=runs)
        eighth = max(seconds.get(length // 8, MOST), QUICK / 8)
        if took > min(MOST, GROWTH * eighth):
            return f"{took:.4f} s for {length} characters, {eighth:.4f} s for an eighth"
    return None


# ---- expressions -----------------------------------------------------------------------------

METHODS = {"search", "finditer", "findall", "sub", "subn", "split", "match", "fullmatch"}
parser: Any = importlib.import_module("re._parser")
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


def expressions() -> dict[str, tuple[re.Pattern[str], frozenset[str]]]:
    """Return all expressions by name, with the methods that their modules call on them."""
    found: dict[str, tuple[re.Pattern[str], frozenset[str]]] = {}
    for module in modules():
        uses = uses_in(ast.parse(inspect.getsource(module)))
        for variable, value in vars(module).items():
            for pattern in patterns_in(value):
                name = f"{module.__name__}.{variable}: {pattern.pattern[:40]}"
                found[name] = pattern, frozenset(uses.get(variable, METHODS))
    for profile in PROFILES.values():
        for row in profile.limits:
            if isinstance(row, Items):
                found[f"{profile.name}, header: {row.header}"] = row.names, frozenset({"fullmatch"})
                found[f"{profile.name}, item: {row.item[:40]}"] = row.each, frozenset({"finditer"})
    return found


def patterns_in(value: object) -> Iterator[re.Pattern[str]]:
    if isinstance(value, re.Pattern):
        pattern = cast("re.Pattern[str] | re.Pattern[bytes]", value)
        text = pattern.pattern
        if isinstance(text, bytes):  # the same expression, of characters
            yield re.compile(text.decode("latin-1"), pattern.flags | re.ASCII)
        else:
            yield cast("re.Pattern[str]", pattern)
    elif isinstance(value, list | tuple | set | frozenset):
        for each in cast("Iterable[object]", value):
            yield from patterns_in(each)
    elif isinstance(value, dict):
        yield from patterns_in(list(cast("dict[object, object]", value).values()))


def uses_in(tree: ast.Module) -> dict[str, set[str]]:
    """Return the methods called on the variables of a module, also in a loop over one."""
    loops: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.For | ast.comprehension):
            match node.target, node.iter:
                case ast.Name(one), ast.Name(all_of_them):
                    loops[one] = all_of_them
                case _:
                    pass
    uses: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(ast.Name(variable), method) if method in METHODS:
                uses.setdefault(loops.get(variable, variable), set()).add(method)
            case _:
                pass
    return uses


def samples(pattern: str, flags: int, variants: int = 4) -> Iterator[list[str]]:
    """Make texts that match, or nearly, in pieces: a `CUT` stands where something is repeated."""
    tree = parser.parse(pattern, flags)
    for variant in range(variants):
        yield pieces_of(tree, variant)


def pieces_of(tree: Any, variant: int) -> list[str]:  # noqa: ANN401 - it has no public type
    pieces: list[str] = []
    for kind, value in tree:
        match str(kind):
            case "LITERAL":
                pieces.append(chr(value))
            case "NOT_LITERAL":
                pieces.append("a" if value != ord("a") else "b")
            case "ANY":
                pieces.append("a")
            case "IN":
                own = "".join(chr(part) for _, part in value if isinstance(part, int))
                fitting = [char for char in ' a1,"-/=_:\t\\@.<Z' + own if fits(char, value)]
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


def fits(char: str, choices: list[tuple[Any, Any]]) -> bool:
    """Return whether a set of characters, such as [^a-z], has the character."""
    negated, found = False, False
    for kind, value in choices:
        match str(kind):
            case "NEGATE":
                negated = True
            case "LITERAL":
                found |= ord(char) == value
            case "RANGE":
                found |= value[0] <= ord(char) <= value[1]
            case _:
                category = str(value).removeprefix("CATEGORY_")
                test = {"DIGIT": str.isdigit, "SPACE": str.isspace, "WORD": str.isalnum}
                found |= test[category.removeprefix("NOT_")](char) != category.startswith("NOT_")
    return found != negated


def hostile_to(pattern: re.Pattern[str]) -> Iterator[Text]:
    """Return texts that match up to a repetition, continue for long, and end in a mismatch."""
    seen: set[tuple[str, str]] = set()
    for pieces in samples(pattern.pattern, pattern.flags & ~re.UNICODE):
        cuts = [0, *(place for place, piece in enumerate(pieces) if piece is CUT)]
        for cut in cuts:
            before = "".join(piece for piece in pieces[:cut] if piece is not CUT)
            after = "".join(piece for piece in pieces[cut:] if piece is not CUT)
            seen.add((before, after))
    for before, after in sorted(seen):
        for unit in {*UNITS, after[:1], after[:2], after, before + after} - {""}:
            yield Text(before, unit)
            yield Text(before, unit, "\0")
            yield Text(before, unit, after + "\0")


def check_expression(name: str) -> None:
    pattern, methods = EXPRESSIONS[name]
    anchored = methods <= {"match", "fullmatch"}

    def work(text: str) -> object:
        if anchored:
            return pattern.fullmatch(text)
        return sum(1 for _ in pattern.finditer(text))

    for text in hostile_to(pattern):
        assert_linear(work, text)


# ---- headers ---------------------------------------------------------------------------------


def words_in(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from words_in(list(cast("dict[object, object]", value)))
        yield from words_in(list(cast("dict[object, object]", value).values()))
    elif isinstance(value, list | tuple | set | frozenset):
        for each in cast("Iterable[object]", value):
            yield from words_in(each)


def headers_of_all() -> list[str]:
    """Return the names read from every server: words of the tables, alone and with a prefix."""
    words: set[str] = set()
    for found in pkgutil.iter_modules(aiothrottle.headers.__path__, "aiothrottle.headers."):
        if ".vendor" not in found.name:
            for value in vars(importlib.import_module(found.name)).values():
                words |= {word.lower() for word in words_in(value) if len(word) < 40}
    names = {
        name
        for word in words
        for family in FAMILIES
        for name in (word, f"{family}-{word}", f"{family}-{word}-day", f"{family}-day-{word}")
    }
    return sorted(name for name in names if is_read(name, None))


def headers_of(profile: Profile) -> list[str]:
    names = set(profile.milliseconds)
    for row in profile.limits:
        if isinstance(row, Limit):
            names |= row.headers
        elif isinstance(row, Json):
            names |= {row.header} - {""}
        else:
            for pieces in samples(row.header, 0, variants=12):
                names.add("".join(piece for piece in pieces if piece is not CUT))
    return sorted(name for name in names if is_read(name, profile))


def is_read(name: str, profile: Profile | None) -> bool:
    found = (layouts() if profile is None else profile.layouts)[(name,)]
    return any(lines for kind in collect(found, ["1"]).values() for lines in kind.values())


def check_header(name: str, profile: Profile | None) -> None:
    def work(text: str) -> object:
        return parse_rate_limit(429, [(name, text)], NOW, None, profile)

    for beginning in PREFIXES:
        for unit in UNITS:
            assert_linear(work, Text(beginning, unit))


# ---- bodies ----------------------------------------------------------------------------------

# The places of text in a body: all of it, or some part of JSON.
BODIES = [
    *("{}", "[{}", '{{"error":["{}"]}}', '{{"error":{}', "throttled: {}", "<Error><Code>{}"),
    *('[{}"a"]', '{{{}"a":"a"}}', '{{"error":{{"metadata":{{"headers":{{{}"age":"1"}}}}}}}}'),
]


def body_keys() -> list[str]:
    body = importlib.import_module("aiothrottle.headers.body")
    tables = [value for name, value in vars(body).items() if not name.startswith("__")]
    return sorted({word for word in words_in(tables) if word.isalnum()})


def check_body(form: str) -> None:
    before, after = (part.replace("{{", "{").replace("}}", "}") for part in form.split("{}"))
    for status in (200, 429):

        def work(text: str, status: int = status) -> object:
            return parse_rate_limit(status, [], NOW, text)

        for unit in UNITS:
            assert_linear(work, Text(before, unit, after))
            if unit[-1] == ",":
                assert_linear(work, Text(before, unit))


def check_key(key: str) -> None:
    for unit in UNITS:

        def work(text: str) -> object:
            return parse_rate_limit(429, [], NOW, json.dumps({key: text}))

        assert_linear(work, Text("", unit))


def check_json(row: Json, profile: Profile) -> None:
    """Many members above many objects, and long ones."""
    keys = [key for key in (row.limit, row.remaining, row.reset, row.window, row.wait) if key]
    path = row.path.split(".") if row.path else []

    def at_the_end_of(path: list[str], found: object, many: int) -> dict[str, object]:
        if not path:
            return dict.fromkeys(map(str, keys), found)
        step, *rest = path
        if step != "*":
            return {step: at_the_end_of(rest, found, many)}
        return {f"a{i}": at_the_end_of(rest, found, 1) for i in range(many)}

    def many_objects(text: str) -> object:
        above: dict[str, object] = {f"b{i}": i for i in range(len(text) // 30)}
        return read_json(row, above | at_the_end_of(path, 1, len(text) // 300), profile)

    def long_values(text: str) -> object:
        return read_json(row, at_the_end_of(path, text, 8), profile)

    assert_linear(many_objects, Text("", "x"))
    for unit in UNITS:
        assert_linear(long_values, Text("", unit))


def read_json(row: Json, data: object, profile: Profile) -> object:
    text = json.dumps(data)
    if row.header:
        return parse_rate_limit(429, [(row.header, text)], NOW, None, profile)
    return parse_rate_limit(429, [], NOW, text, profile)


# ---- all of them -----------------------------------------------------------------------------

EXPRESSIONS = expressions()
HEADERS = headers_of_all()
PROFILED = [profile for profile in PROFILES.values() if profile.limits or profile.milliseconds]
IN_JSON = [(row, one) for one in PROFILED for row in one.limits if isinstance(row, Json)]
SUBJECTS: dict[str, Callable[[], None]] = {
    **{f"expression {name}": partial(check_expression, name) for name in EXPRESSIONS},
    **{f"header {name}": partial(check_header, name, None) for name in HEADERS},
    **{
        f"header {name} of {profile.name}": partial(check_header, name, profile)
        for profile in PROFILED
        for name in headers_of(profile)
    },
    **{f"body {form}": partial(check_body, form) for form in BODIES},
    **{f"body with {key}": partial(check_key, key) for key in body_keys()},
    **{
        f"JSON {row.header or row.path} of {profile.name}": partial(check_json, row, profile)
        for row, profile in IN_JSON
    },
}


@pytest.mark.parametrize("subject", SUBJECTS)
def test_time_grows_with_length(subject: str) -> None:
    SUBJECTS[subject]()


def test_everything_is_found() -> None:
    """Introspection that finds nothing would let everything pass."""
    assert any("quotas._ITEM" in name for name in EXPRESSIONS)
    assert any("dates._FORMS" in name for name in EXPRESSIONS)
    assert any("feed._NAME" in name for name in EXPRESSIONS)
    known = {"retry-after", "date", "ratelimit", "ratelimit-policy", "x-ratelimit-limit-day"}
    assert known <= set(HEADERS)
    for profile in PROFILED:
        assert headers_of(profile) or any(
            isinstance(row, Json) and not row.header for row in profile.limits
        )
    assert {"retryafter", "retmsg"} <= set(body_keys())


def test_no_expression_is_hidden_in_a_function() -> None:
    """Only expressions compiled at the top of a module are found."""
    for module in modules():
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            match node:
                case ast.Attribute(ast.Name("re"), method):
                    assert method not in METHODS, f"{module.__name__} uses re.{method}()"
                case _:
                    pass


# ---- one response ----------------------------------------------------------------------------


def test_sixty_hostile_lines_are_parsed_quickly() -> None:
    """As many as aiohttp takes, each of 8 kB: of one name, or of all."""
    values = [Text(beginning, unit).of(8000) for beginning in PREFIXES for unit in UNITS]
    cases: list[tuple[str, Profile | None]] = [(name, None) for name in HEADERS]
    cases += [(name, profile) for profile in PROFILED for name in headers_of(profile)]
    for place, (name, profile) in enumerate(cases):
        lines = [(name, values[(place * 7 + line) % len(values)]) for line in range(60)]
        check_response(lines, profile)
    for value in values:
        check_response([(name, value) for name in HEADERS[::5][:60]], None)


def test_sixty_long_names_are_parsed_quickly() -> None:
    names = [f"x-ratelimit-{'a-' * 4000}{number}" for number in range(60)]
    check_response([(name, "1") for name in names], PROFILES["Binance"])
    quotas = ServerQuotas("at once", (), 60)
    assert_quick(lambda: quotas.has_none(200, names))


def check_response(lines: list[tuple[str, str]], profile: Profile | None) -> None:
    assert_quick(lambda: parse_rate_limit(429, lines, NOW, None, profile))


def assert_quick(work: Callable[[], object]) -> None:
    if seconds_for(lambda _: work(), "") > 0.05:
        assert seconds_for(lambda _: work(), "", runs=5) < 0.05
