#!/usr/bin/env python
"""Write the generated reference: `python scripts/reference.py`.

The pages of docs/reference/api are the public names with their signatures, arguments, fields and
errors, from the docstrings; docs/reference/options.md has the options of the command. No page is
written by hand, and `tests/project/test_reference.py` fails when one is stale.
"""

import ast
import contextlib
import dataclasses
import inspect
import re
import textwrap
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, cast, is_typeddict

REFERENCE = Path(__file__).resolve().parents[1] / "docs" / "reference"
NOTE = "<!-- Written by `python scripts/reference.py`, from the docstrings. -->"
OPTIONS = "aiothrottle._http.options"


class Part(NamedTuple):
    """A part of a page: a module, of which all names are shown that no other part has, or names."""

    heading: str
    module: str
    names: str = ""


class Page(NamedTuple):
    """A page: its title, what stands below it, and its parts."""

    title: str
    about: str
    parts: tuple[Part, ...]


PAGES = {
    "limiters": Page(
        "Limiters",
        "[Limits of all kinds](../../guides/limits.md) has examples.",
        (Part("", "aiothrottle", "RateLimiter KeyedRateLimiter Permit PerLoop"),),
    ),
    "values": Page(
        "Rates, decisions, statistics",
        "What limiters take and return.",
        (Part("", "aiothrottle", "Rate Decision Statistics Resource SharedConcurrency"),),
    ),
    "algorithms": Page(
        "Algorithms",
        "[Limits of all kinds](../../guides/limits.md#the-algorithms) compares them. For an "
        "algorithm of your own see [the protocol](protocol.md).",
        (
            Part(
                "",
                "aiothrottle",
                "SlidingWindowLog SlidingWindowCounter FixedWindow TokenBucket LeakyBucket "
                "WaitUntil Cooldown",
            ),
        ),
    ),
    "protocol": Page(
        "The protocol of algorithms",
        "What an algorithm of your own has, and what the limiter does with it: "
        "[an example](../../project/contributing.md#add-an-algorithm).",
        (Part("", "aiothrottle.algorithms"),),
    ),
    "adaptive": Page(
        "Adaptive limits",
        "[Unknown limits](../../concepts/adaptive.md) explains them.",
        (
            Part(
                "In place of a number",
                "aiothrottle",
                "AdaptiveRate AdaptiveConcurrency AdaptiveThrottling",
            ),
            Part("The controllers alone", "aiothrottle.adaptive"),
        ),
    ),
    "errors": Page(
        "Errors",
        "Every error of a limiter is a `ThrottleError`. [Errors](../errors.md) says what to do.",
        (
            Part(
                "",
                "aiothrottle",
                "ThrottleError CostTooHigh ThrottleTimeout QueueFull LimiterClosed RequestDropped "
                "StoreUnavailable AttemptThrottled",
            ),
        ),
    ),
    "aiohttp": Page(
        "aiohttp",
        "[Sessions of aiohttp](../../guides/aiohttp.md) has examples.",
        (Part("", "aiothrottle.aiohttp"),),
    ),
    "httpx": Page(
        "httpx and httpx2",
        "[httpx and httpx2](../../guides/httpx.md) has examples.",
        (Part("", "aiothrottle.httpx"), Part("", "aiothrottle.httpx2")),
    ),
    "options": Page(
        "Options of the integrations",
        "The keyword arguments of `aiothrottle.aiohttp`, `aiothrottle.httpx` and "
        "`aiothrottle.httpx2`. The classes are for type checkers, as `**options: "
        "Unpack[SessionOptions]` of a function of your own: `SessionOptions`, `MiddlewareOptions` "
        "and `RetryOptions` are in `aiothrottle.aiohttp`, `ClientOptions` in the other two.",
        (
            Part(
                "",
                OPTIONS,
                "HeaderOptions ThrottleOptions RetryOptions WebsocketOptions ClientOptions "
                "MiddlewareOptions SessionOptions",
            ),
        ),
    ),
    "retry": Page(
        "Retries",
        "When a request is sent again, and after what delay.",
        (Part("", "aiothrottle", "Retry RetryBudget"),),
    ),
    "hooks": Page(
        "Hooks",
        "What the callables of an integration get and return. "
        "[Cost, key and priority](../../guides/hooks.md) has examples.",
        (Part("", "aiothrottle.hooks"),),
    ),
    "llm": Page(
        "Language models",
        "[Language models](../../guides/llm.md) has examples.",
        (Part("", "aiothrottle.llm"),),
    ),
    "clients": Page(
        "Clients",
        "Adapters for clients that take neither an aiohttp session nor an httpx transport. "
        "[Works with](../../servers/works-with.md) has examples.",
        (
            Part("", "aiothrottle.integrations.aiobotocore"),
            Part("", "aiothrottle.integrations.langchain"),
        ),
    ),
    "headers": Page(
        "Headers",
        "[Reported limits](../headers.md) lists the headers that are understood.",
        (Part("", "aiothrottle.headers"),),
    ),
    "stores": Page(
        "Stores",
        "[Sharing limits between processes](../../guides/stores.md) explains how to choose one.",
        (
            Part("Redis and Valkey", "aiothrottle.stores.redis"),
            Part("MongoDB", "aiothrottle.stores.mongo"),
            Part("memcached", "aiothrottle.stores.memcached"),
            Part("In this process, in a file, and of your own", "aiothrottle.stores"),
        ),
    ),
    "observability": Page(
        "Events, metrics, dashboard",
        "[Observability](../observability.md) has examples.",
        (
            Part("Events", "aiothrottle.events"),
            Part("Prometheus", "aiothrottle.metrics.prometheus"),
            Part("OpenTelemetry", "aiothrottle.metrics.opentelemetry"),
            Part("A live page", "aiothrottle.dashboard"),
        ),
    ),
    "testing": Page(
        "Testing and simulation",
        "[Test your code](../../guides/testing.md) has examples.",
        (Part("", "aiothrottle.testing"), Part("", "aiothrottle.simulation")),
    ),
    "contracts": Page(
        "Contracts of stores",
        "Test suites that a store of your own has to pass.",
        (Part("", "aiothrottle.testing.store_contract"),),
    ),
}

# ruff: noqa: E501 - the lines of the table
INDEX = """# API

Every public name, by module. All other names are private and may change in any version. The pages
have the docstrings of the source.

| you want | import | page |
|---|---|---|
| to limit any awaited work | `from aiothrottle import RateLimiter` | [Limiters](limiters.md) |
| to limit an aiohttp session | `from aiothrottle.aiohttp import ThrottledSession` | [aiohttp](aiohttp.md) |
| to limit an httpx client | `from aiothrottle.httpx import ThrottledTransport` | [httpx](httpx.md) |
| to say when to retry | `from aiothrottle import Retry` | [Retries](retry.md) |
| to call a language model | `from aiothrottle import llm` | [Language models](llm.md) |
| to share a limit | `from aiothrottle.stores.redis import RedisStore` | [Stores](stores.md) |
| to handle an error | `from aiothrottle import ThrottleTimeout` | [Errors](errors.md) |
| to test without waiting | `from aiothrottle.testing import VirtualTimeLoop` | [Testing](testing.md) |

## All names

{names}

```{{toctree}}
:hidden:

{pages}
```
"""

#: What the source cannot say: names that are bound to a value without a docstring of its own.
VALUES = {
    "aiothrottle.headers.PROFILES": "The built-in profiles, by name: a mapping that cannot be "
    "changed.",
    "aiothrottle.hooks.CostHook": "A `cost` option: a callable of a `Request` that returns its "
    "cost, or None for 1 token.",
    "aiothrottle.hooks.KeyHook": "A `key` option: a callable of a `Request` that returns its key, "
    "or None for its host.",
    "aiothrottle.hooks.PriorityHook": "A `priority` option: a callable of a `Request` that returns "
    "its priority, or None for 0.",
    "aiothrottle.hooks.SettleHook": "A `settle` option: a callable of a `Response` that returns "
    "its cost, a `BodyReader`, or None.",
    "aiothrottle.llm.TokenCounter": "Returns the number of tokens in a text: a function of the "
    "text.",
    "aiothrottle.simulation.RetryAfter": "The wait that a server reports to throttled requests: "
    '`"seconds"`, whole ones, rounded up; `"exact"` ones; or `"none"`.',
    "aiothrottle.stores.Key": "The name of a record: a text, or a tuple of several, such as an "
    "action and an actor.",
    "aiothrottle.stores.Loaded": "The result of `SwapStore.load`: the bytes under a key or None, a "
    "mark by which `swap` recognises them, and the store's clock in seconds.",
    "aiothrottle.testing.store_contract.ALGORITHMS": "One of each algorithm, and some of several "
    "at once.",
}


# ---- docstrings ----------------------------------------------------------------------------------

SECTION = re.compile(r"^(Args|Attributes|Returns|Yields|Raises):$", re.MULTILINE)
ENTRY = re.compile(r"^(\*{0,2}[\w.]+(?:, \*{0,2}[\w.]+)*): ?(.*)$")
HEADS = {
    "Args": "Arguments",
    "Attributes": "Fields",
    "Returns": "Returns",
    "Yields": "Yields",
    "Raises": "Raises",
}


def prose(text: str) -> str:
    """Return the text of a docstring, without its sections, as Markdown."""
    text = re.sub(r"``([^`]+)``", r"`\1`", text)
    blocks: list[str] = []
    for block in re.split(r"\n{2,}", text.strip()):
        if block.startswith(">>>"):
            blocks.append(f"```pycon\n{block}\n```")
        elif block.startswith("    "):
            blocks.append(f"```py\n{textwrap.dedent(block)}\n```")
        else:
            # "- " begins a list wherever it begins a line; in the source it may follow a line.
            blocks.append(
                re.sub(r"(?m)^(?!- |  )(.*)\n- ", r"\1\n\n- ", re.sub(r"::$", ":", block))
            )
    joined = "\n\n".join(blocks)
    return re.sub(r"\n```\n\n```py\n", "\n\n", joined)  # one example, with blank lines


def entries(text: str) -> Iterator[tuple[str, str]]:
    """Yield the names of a section with their descriptions."""
    name, lines = "", list[str]()
    for line in textwrap.dedent(text).splitlines():
        found = None if line.startswith(" ") else ENTRY.match(line)
        if found:
            if name:
                yield name, " ".join(lines)
            name, lines = found[1], [found[2]]
        elif line.strip():
            lines.append(line.strip())
    if name:
        yield name, " ".join(lines)


def described(doc: str) -> tuple[str, list[tuple[str, str]]]:
    """Return the text of a docstring, and its sections: heading and content as Markdown."""
    text, *rest = SECTION.split(doc)
    sections: list[tuple[str, str]] = []
    for head, body in zip(rest[::2], rest[1::2], strict=True):
        # What is not indented after a section belongs to the text again: an example, mostly.
        inside, after = list[str](), list[str]()
        for line in body.strip("\n").splitlines():
            (after if after or (line and not line.startswith(" ")) else inside).append(line)
        content = "\n".join(inside)
        text += "\n\n" + "\n".join(after)
        if head in {"Returns", "Yields"}:
            content = " ".join(textwrap.dedent(content).split())
        else:
            content = "\n".join(
                f"- {', '.join(f'`{it}`' for it in name.split(', '))}: {what}"
                for name, what in entries(content)
            )
        sections.append((HEADS[head], re.sub(r"``([^`]+)``", r"`\1`", content)))
    return prose(text), sections


# ---- signatures ----------------------------------------------------------------------------------

SHORT = re.compile(r"(?:\b\w+\.)+(?=\w)")


def annotation_text(annotation: object) -> str:
    """Return a type as a reader writes it: without modules and quotes."""
    if annotation is inspect.Parameter.empty:
        return ""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    text = re.sub(r"ForwardRef\('([^']+)'[^)]*\)", r"\1", text)
    text = re.sub(r"\*?<class '([^']+)'>", r"\1", text)
    text = SHORT.sub("", text).replace("NoneType", "None").replace("~", "").replace("'", '"')
    return joined_union(re.sub(r"Optional\[((?:[^\[\]]|\[[^\[\]]*\])+)\]", r"\1 | None", text))


def joined_union(text: str) -> str:
    """Return a type with `A | B` for `Union[A, B]`, as every version of Python may have it."""
    while (begin := text.find("Union[")) >= 0:
        depth, members, last = 0, list[str](), begin + len("Union[")
        for place in range(last, len(text)):
            character = text[place]
            if depth == 0 and character in ",]":
                members.append(text[last:place].strip())
                last = place + 1
                if character == "]":
                    break
            depth += (character == "[") - (character == "]")
        text = text[:begin] + " | ".join(members) + text[last:]
    return text


def written_defaults(called: object) -> dict[str, str]:
    """Return the defaults of a function or a class as the source has them."""
    function: object = inspect.unwrap(called) if callable(called) else called
    if inspect.isclass(called):
        if "__init__" not in vars(called) or dataclasses.is_dataclass(called):
            values: dict[str, str] = {}
            for base in reversed(called.__mro__):
                if base.__module__.startswith("aiothrottle"):
                    values |= {it.name: it.default for it in annotated(base) if it.default}
            return values
        function = vars(called)["__init__"]
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cast("Any", function))))
    except (OSError, TypeError, SyntaxError):
        return {}
    defined = tree.body[0]
    if not isinstance(defined, ast.FunctionDef | ast.AsyncFunctionDef):
        return {}
    given = defined.args
    places = [it.arg for it in (*given.posonlyargs, *given.args)]
    pairs = [*zip(places[::-1], given.defaults[::-1], strict=False)]
    pairs += [
        (it.arg, value)
        for it, value in zip(given.kwonlyargs, given.kw_defaults, strict=True)
        if value is not None
    ]
    return {name: ast.unparse(value) for name, value in pairs}


class Annotated(NamedTuple):
    """An annotated name in the body of a class, with a string below it, if there is one."""

    name: str
    kind: str
    default: str
    text: str


def annotated(kind: type) -> Iterator[Annotated]:
    """Yield the annotated names in the body of a class."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    except (OSError, TypeError):
        return
    body: list[ast.stmt] = cast("ast.ClassDef", tree.body[0]).body
    for it, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(it, ast.AnnAssign):
            text = ""
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                text = " ".join(str(after.value.value).split())
            default = ast.unparse(it.value) if it.value else ""
            yield Annotated(ast.unparse(it.target), ast.unparse(it.annotation), default, text)


def signature(name: str, called: Callable[..., object], *, is_method: bool = False) -> str:
    """Return the signature of a function or a class, on several lines if it is long."""
    try:
        signed = inspect.signature(called)
    except (TypeError, ValueError):
        return f"{name}(...)"
    defaults = written_defaults(called)
    parts: list[str] = []
    keyword_only = False
    for it in [*signed.parameters.values()][1 if is_method else 0 :]:
        if it.kind is it.KEYWORD_ONLY and not keyword_only:
            parts += ["*"]
        keyword_only |= it.kind in {it.KEYWORD_ONLY, it.VAR_POSITIONAL}
        if it.name == "positional":  # it accepts nothing, to say in its error what to write
            parts += ["*"]
            continue
        if it.name.startswith("_"):
            continue
        mark = "*" if it.kind is it.VAR_POSITIONAL else "**" * (it.kind is it.VAR_KEYWORD)
        text = f"{mark}{it.name}"
        if kind := annotation_text(it.annotation):
            is_options = it.kind is it.VAR_KEYWORD and kind[:1].isupper() and "[" not in kind
            text += f": Unpack[{kind}]" if is_options and kind != "Any" else f": {kind}"
        if it.default is not it.empty:
            default = (defaults.get(it.name) or repr(it.default)).replace("'", '"')
            if re.match(r"<|_|[A-Z_]+$|field\(", default):
                default = "..."
            text += f" = {default}"
        parts.append(text)
    returned = annotation_text(signed.return_annotation)
    end = f" -> {returned}" if returned and not inspect.isclass(called) else ""
    line = f"{name}({', '.join(parts)}){end}"
    if len(line) <= 90 or not parts:
        return line
    return f"{name}(\n" + "".join(f"    {wrapped(part)},\n" for part in parts) + f"){end}"


def wrapped(parameter: str) -> str:
    """Return a parameter with the parts of a long union on lines of their own."""
    if len(parameter) <= 86:
        return parameter
    depth, text = 0, ""
    for character in parameter:
        depth += (character in "[(") - (character in "])")
        text += "\n        |" if character == "|" and depth == 0 else character
    return re.sub(r" +\n", "\n", text)


# ---- fields and members --------------------------------------------------------------------------

ASSIGNED = re.compile(r"^\s*(?:self\.)?(\w+)(?:: *(.+?))?(?: = (.*))?$")


def own_bases(kind: type) -> list[type]:
    """Return a class and its bases of this package that no page has, the bases first."""
    public = public_values()
    return [
        it
        for it in reversed(kind.__mro__)
        if it is kind or (it.__module__.startswith("aiothrottle") and not _is_in(it, public))
    ]


def fields_of(kind: type) -> Iterator[str]:
    """Yield a line for each field that has a comment or a string of its own."""
    for base in own_bases(kind):
        try:
            source = textwrap.dedent(inspect.getsource(base))
        except (OSError, TypeError):
            continue
        comment: list[str] = []
        for line in source.splitlines():
            if line.strip().startswith("#:"):
                comment.append(line.strip()[2:].strip())
                continue
            found = ASSIGNED.match(re.sub(r"  #.*$", "", line)) if comment else None
            if found and not found[1].startswith("_"):
                yield field_line(found[1], found[2] or "", found[3], " ".join(comment))
            comment = []
        for it in annotated(base):
            if it.text:
                yield field_line(it.name, it.kind, None, it.text)


def field_line(name: str, kind: str, default: str | None, text: str) -> str:
    """Return the line of a field."""
    kind = kind.strip().strip("\"'")
    kind = re.sub(r"ClassVar\[(.*)\]$", r"\1", kind)
    shown = f"{name}: {kind}" if kind else name
    if default and not re.match(r"field\(|_|\w+\($", default):
        shown += f" = {default.strip()}"
    text = re.sub(r"``([^`]+)``", r"`\1`", text)
    return f"- `{shown}`: {text}"


def function_of(value: object) -> Callable[..., object]:
    """Return the function of a method, a property or a cached property."""
    for name in ("__func__", "fget", "func"):
        value = getattr(value, name, value)
    return cast("Callable[..., object]", value)


def members_of(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties of a class, in the order of the source."""
    found: dict[str, Any] = {}
    for base in own_bases(kind):
        for name, value in vars(base).items():
            if name.startswith("_") or inspect.isclass(value):
                continue
            function = function_of(value)
            if inspect.isfunction(function) and (function.__doc__ or name in found):
                found[name] = value
    yield from found.items()


def member(kind: type, name: str, value: object, level: int) -> str:
    """Return the text of a method or a property."""
    full = f"{kind.__name__}.{name}"
    function = function_of(value)
    doc = inspect.getdoc(getattr(kind, name)) or inspect.getdoc(function) or ""
    if isinstance(value, property) or hasattr(value, "func"):
        kind_of = annotation_text(inspect.signature(function).return_annotation)
        code = f"{full}: {kind_of}"
    else:
        code = signature(full, function, is_method=not isinstance(value, staticmethod))
        if inspect.iscoroutinefunction(function):
            code = f"await {code}"
        if isinstance(value, classmethod | staticmethod):
            code = f"# {type(value).__name__}\n{code}"  # pyright: ignore[reportUnknownArgumentType]
    return block(level, full, code, doc)


def block(level: int, name: str, code: str, doc: str, *more: str) -> str:
    """Return a heading with a signature and the description."""
    text, sections = described(inspect.cleandoc(doc))
    parts = [f"{'#' * level} {name}", f"```py\n{code}\n```" if code else "", text]
    parts += [f"**{head}**\n\n{content}" for head, content in sections if content]
    parts += more
    return "\n\n".join(part for part in parts if part.strip())


def value_text(module: ModuleType, name: str) -> str:
    """Return the description of a name that is neither a class nor a function.

    Raises:
        LookupError: It has none.
    """
    full = f"{module.__name__}.{name}"
    if full in VALUES:
        return VALUES[full]
    value = getattr(module, name)
    for place in {module.__name__, getattr(value, "__module__", None) or module.__name__}:
        source = inspect.getsource(import_module(place))
        if found := re.search(rf"((?:^#:.*\n)+){name}\b", source, re.MULTILINE):
            return " ".join(line[2:].strip() for line in found[1].splitlines())
        if found := re.search(rf'^{name}\b[^\n]*= [\s\S]*?\n"""(.*?)"""', source, re.MULTILINE):
            return " ".join(found[1].split())
        if found := re.search(rf"((?:^# .*\n)+){name}\b", source, re.MULTILINE):
            return " ".join(line[2:].strip() for line in found[1].splitlines())
    raise LookupError(f"{full}: add a comment with #: above it, or a line in VALUES")


def entry(module: ModuleType, name: str, level: int) -> str:
    """Return the text of a public name."""
    value = getattr(module, name)
    if inspect.isclass(value) and not hasattr(value, "__supertype__"):
        is_error = issubclass(value, BaseException)
        is_uncalled = is_typeddict(value) or getattr(value, "_is_protocol", False)
        code = "" if is_uncalled or is_error else signature(name, value)
        doc = vars(value).get("__doc__") or ""
        if dataclasses.is_dataclass(value) and doc.startswith(f"{name}("):
            doc = ""
        bases = [it.__name__ for it in value.__bases__ if it.__module__ not in {"typing", "abc"}
                 and not it.__name__.startswith("_") and it is not object]  # fmt: skip
        kind_line = f"*Derives from {', '.join(f'`{it}`' for it in bases)}.*" if is_error else ""
        fields = list(dict.fromkeys(fields_of(value)))
        more = [kind_line, "**Fields**\n\n" + "\n".join(fields) if fields else ""]
        more += [member(value, it, of_class, level + 1) for it, of_class in members_of(value)]
        return block(level, name, code, doc, *more)
    if inspect.isroutine(value):
        code = signature(name, value)
        if inspect.iscoroutinefunction(inspect.unwrap(value)):
            code = f"await {code}"
        return block(level, name, code, value.__doc__ or "")
    return f"{'#' * level} {name}\n\n{value_text(module, name)}"


# ---- pages ---------------------------------------------------------------------------------------


def listed(part: Part) -> list[str]:
    """Return the names of a part: those that it lists, or all that no other part lists."""
    if part.names:
        return part.names.split()
    module = import_module(part.module)
    others = named_values()
    return [
        name
        for name in getattr(module, "__all__", [])
        if not name.startswith("__") and not _is_in(getattr(module, name), others)
    ]


def _is_in(value: object, others: list[object]) -> bool:
    return any(value is other for other in others)


@cache
def named_values() -> list[object]:
    """Return what a part lists by name."""
    parts = [part for page in PAGES.values() for part in page.parts if part.names]
    return [
        getattr(import_module(part.module), name) for part in parts for name in part.names.split()
    ]


@cache
def public_values() -> list[object]:
    """Return what any page has, of the modules whose packages are installed."""
    found = [*named_values()]
    for module in {part.module for page in PAGES.values() for part in page.parts}:
        with contextlib.suppress(ModuleNotFoundError):
            public = import_module(module)
            found += [getattr(public, name) for name in getattr(public, "__all__", ())]
    return found


def page_text(name: str) -> str:
    """Return the text of a page of the API.

    Raises:
        ModuleNotFoundError: A package that the page is about is not installed.
    """
    page = PAGES[name]
    texts = [f"# {page.title}", NOTE, page.about]
    for part in page.parts:
        module = import_module(part.module)
        level = 2
        if part.heading or len(page.parts) > 1:
            texts.append(f"## {part.heading or part.module}")
            level = 3
        if not part.names:
            texts.append(described(inspect.cleandoc(module.__doc__ or ""))[0])
        names = listed(part)
        if part.module != OPTIONS:
            texts.append(f"Import from `{part.module}`.")
        texts += [entry(module, it, level) for it in names]
    return "\n\n".join(text.strip() for text in texts if text.strip()) + "\n"


def index_text() -> str:
    """Return the text of the first page of the API."""
    lines = ["| module | names |", "|---|---|"]
    modules: dict[str, list[str]] = {}
    for name, page in PAGES.items():
        for part in page.parts:
            if part.module != OPTIONS:
                modules.setdefault(part.module, []).extend(
                    f"[`{it}`]({name}.md#{it.lower()})" for it in listed(part)
                )
    lines += [f"| `{module}` | {', '.join(names)} |" for module, names in modules.items()]
    return INDEX.format(names="\n".join(lines), pages="\n".join(PAGES))


# ---- the command ---------------------------------------------------------------------------------


def cell(text: str) -> str:
    """Return the text of a cell of a table; options are code, or "--" would become a dash."""
    text = re.sub(r"([|<*])", r"\\\1", " ".join(text.split()))
    return re.sub(r"(?<![\w-])(--?[a-zA-Z][\w-]*)", r"`\1`", text)


def option_rows(parser: ArgumentParser) -> Iterator[str]:
    """Yield the tables of a command, one for each group of its options."""
    for group in parser._action_groups:
        rows: list[str] = []
        for action in group._group_actions:
            if action.dest == "help":
                continue
            names = ", ".join(f"`{it}`" for it in action.option_strings)
            value = action.metavar or ("" if action.nargs == 0 else action.dest.upper())
            if action.choices:
                value = ", ".join(map(str, action.choices))
            value = "" if action.nargs == 0 else f"`{value}`".replace("|", r"\|")
            text = (action.help or "") % {**vars(action), "prog": parser.prog}
            rows.append(f"| {f'{names} {value}'.strip()} | {cell(text)} |")
        if rows:
            yield f"| {group.title} | |\n|---|---|\n" + "\n".join(rows)


def options_text() -> str:
    """Return the page of the options of the command."""
    from aiothrottle.cli import make_parser

    texts = [
        "# Options of the command",
        NOTE.replace("the docstrings", "the parser"),
        "[The command line](command-line.md) explains the commands; `--help` prints the same.",
    ]
    [found] = [it for it in make_parser(filled=True)._actions if it.dest == "command"]
    commands = cast("dict[str, ArgumentParser]", found.choices)
    for name, parser in commands.items():
        texts += [f"## {name}", f"`{parser.format_usage().strip().removeprefix('usage: ')}`"]
        texts += option_rows(parser)
    text = "\n\n".join(texts) + "\n"
    return re.sub(r"aiothrottle/\d[\w.]*", "aiothrottle/VERSION", text)


def pages() -> Iterator[tuple[Path, Any]]:
    """Yield each page with the function that returns its text."""
    for name in PAGES:
        yield REFERENCE / "api" / f"{name}.md", lambda name=name: page_text(name)
    yield REFERENCE / "api" / "index.md", index_text
    yield REFERENCE / "options.md", options_text


if __name__ == "__main__":
    for path, text in pages():
        path.write_text(text(), encoding="utf-8")
