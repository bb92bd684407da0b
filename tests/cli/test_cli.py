"""The command line: its help, the arguments that it rejects, and the scripts that complete it."""

import gzip
import io
import os
import shlex
import shutil
import subprocess
import sys
from argparse import ArgumentParser
from importlib.metadata import entry_points
from pathlib import Path
from typing import cast

import pytest

import aiothrottle
from aiothrottle.cli import main, make_parser
from tests.cli.conftest import Command, Serve
from tests.cli.handlers import to
from tests.support.background import COMMAND, ENVIRONMENT, STRICT, run_program


def test_installed_command_is_main() -> None:
    commands = entry_points(group="console_scripts", name="aiothrottle")
    if not commands:
        pytest.skip("the package is not installed")
    assert {each.load() for each in commands} == {main}


def test_scripts_and_help_name_all_commands(command: Command) -> None:
    version = command("--version")
    assert (version.status, version.printed) == (0, f"aiothrottle {aiothrottle.__version__}\n")
    assert (command().status, command("--help").status) == (0, 0)
    assert command().printed == command("--help").printed
    for arguments in ["--help"], ["fetch", "--help"], ["demo", "--help"]:
        assert command(*arguments).printed.startswith("usage: aiothrottle")
    assert "--profile openai \\\n    --rate" in command("fetch", "--help").printed
    pytest.importorskip("shtab")
    for shell in ("bash", "zsh", "tcsh"):
        ended = command("completion", shell)
        assert ended.status == 0
        for name in ("fetch", "probe", "simulate", "demo", "completion", "rate"):
            assert name in ended.printed
        assert "'NAME: VALUE'" not in ended.printed  # which zsh would run at each completion


def test_help_has_every_option_in_80_columns(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The help of an option stands in a docstring, which may lack it."""
    monkeypatch.setenv("COLUMNS", "80")
    (commands,) = (it for it in make_parser(filled=True)._actions if isinstance(it.choices, dict))
    for name, parser in cast("dict[str, ArgumentParser]", commands.choices).items():
        assert [it.dest for it in parser._actions if not it.help] == [], name
        printed = command(name, "--help").printed
        assert [line for line in printed.splitlines() if len(line) > 80] == [], name
        assert "examples:" in printed.lower()


def test_module_imports_only_what_a_command_needs() -> None:
    code = (
        "import sys; from aiothrottle.cli import main\n"
        "print(main(['fetch', 'ftp://a', '--silent']))\n"
        "print(sorted(sys.modules), file=sys.stderr)"
    )
    run = run_program(sys.executable, *STRICT, "-c", code)
    assert run.stdout.splitlines()[-1] == "1"
    assert "'aiothrottle.cli.fetch'" in run.stderr
    for other in ("aiothrottle.cli.demo", "aiothrottle.simulation", "aiohttp.web", "rich", "shtab"):
        assert f"'{other}'" not in run.stderr


def test_closed_output_is_no_traceback() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as output:
        run = subprocess.run(
            [sys.executable, *STRICT, "-m", "aiothrottle", "--help"],  # argparse would hide it
            env=ENVIRONMENT,
            stdout=output,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert (run.returncode, run.stderr) == (141, b"")


# ---- rejected arguments ----------------------------------------------------------------------

# With the complaint. A list or file that is missing would be named in the complaint.
FETCH = [  # with a URL
    ("--resume", "--resume needs a file to continue"),
    ("-o -", "leave it out for standard output"),
    ("''", "argument URL: must not be empty"),
    ("--store sqlite:f --rate 1 --store-key ''", "--store-key: must not be empty"),
    ("-o no/such/out", "no/such/out cannot be written: No such file"),
    ("--output-dir /dev/null", "/dev/null is no folder to write to"),
    ("-q -v", "--quiet and --verbose: give one of them"),
    ("-H 'no colon'", "-H/--header: must be 'Name: value'"),
    ("-H 'content-Length: 5'", "-H/--header: must not be content-Length: it follows from"),
    ("-H 'Transfer-Encoding: chunked'", "-H/--header: must not be Transfer-Encoding: it follows"),
    ("-H 'X-Name: J\udcf6rg'", "-H/--header: must be in UTF-8, got"),
    ("-X 'GET /'", "a method is a word such as GET"),
    ("--rate 5/s,fast", "--rate: cannot read 'fast' as a rate"),
    ("--rate 5/s --burst 6", "--burst 6 is more than --rate 5/s admits at once: give"),
    ("--burst 2", "--burst bounds the use of a rate: give --rate"),
    ("--profile openai --rate requests=5/s,tokens=9/s --burst 6", "--burst 6 is more than --rate"),
    ("--guard 1", "--guard stretches the period of a rate"),
    ("--rate 9/min --per-host 1/250ms --guard 1", "guard must be at most the period of the rate"),
    ("--retries -1", "must be a whole number from 0"),
    ("--max-time soon", "must be a number of seconds"),
    ("--max-retry-after 0", "must be a number of seconds, above 0"),
    ("--max-filesize big", "must be a number of bytes such as 100k"),
    # Lists of requests, and named rates.
    ("--requests jobs", "--requests is the whole list: leave out URLs"),
    ("--rate request=5/s", "charged requests=1 and nothing else: give --rate req"),
    ("--rate =5/s", "--rate: must be a rate such as 10/s, or with its"),
    ("--rate 5/s --rate tokens=9/s", "only some of the rates of --rate name a"),
    ("--rate tokens=9/s --per-host 5/s", "those of --per-host do not"),
    ("--rate tokens=9/s --burst 1", "--burst bounds requests: give --rate requests=10/s"),
    ("--profile other", "argument --profile: invalid choice: 'other'"),
    ("--profile openai --rate 9/s", "openai charges tokens: give their limits"),
    ("--profile anthropic --rate tokens=9/s", "charges input_tokens and output_to"),
    # The store. Of an unclear address only the scheme is shown.
    ("--store-key k --rate 1", "--store-key names the limits in a store"),
    ("--store redis://h", "--store counts a rate: give --rate or --per-host"),
    ("--store redis://h --rate 1 --per-host 1", "counts either all requests or"),
    ("--store nonsense://:secret@x --rate 1", "memcached://, got 'nonsense://x'"),
    ("--store sqlite:///f --rate 1", "sqlite:///f cannot be read: write sqlite:F"),
    ("--store sqlite: --rate 1", "path must be that of a file, got ''"),
    ("--store redis://[::1 --rate 1", "redis://*** cannot be read: write redis://"),
]
WRONG = [
    *((f"fetch http://a/ {options}", complaint) for options, complaint in FETCH),
    ("fetch - -i -", "- was given more than once"),
    ("fetch {file}", "is a file, not a URL: give it with --input-file"),
    ("fetch http://a/ --output-dir ''", "--output-dir: must not be empty"),
    ("fetch -i ''", "-i/--input-file: must not be empty"),
    ("fetch --requests ''", "--requests: must not be empty"),
    ("fetch -i no/such/file", "no/such/file cannot be read: No such file"),
    ("fetch -i .", ". cannot be read: it is a folder"),
    ("fetch -i {file} -o {file}", "is the output, too: name another output"),
    ("fetch --requests {file} -o {file}", "is the output, too: name another output"),
    ("fetch --requests jobs -X put", "each line of --requests has its own method: leave"),
    # The other commands.
    ("nonsense", "unknown command 'nonsense'; the commands are fetch, probe, simulate, demo, com"),
    ("ftch x", "unknown command 'ftch'; did you mean fetch?"),
    ("fetch --conc=3", "unknown option --conc; did you mean --concurrency?"),
    ("fetch --concurency=3", "unknown option --concurency; did you mean --concurrency?"),
    ("fetch --user=a:b", "unknown option --user\n"),
    ("demo more", "unknown argument more"),
    ("fetch --rate foo", "write 20 (per second), 10/s, 100/min"),
    ("demo --rate 0/s", "--rate: the limit of a rate must be a finite number"),
    ("demo --rate 0.5", "--rate: must be a rate of whole requests, got '0.5'"),
    ("demo --pages -1", "--pages: must be a whole number from 1 to 100000, got '-1'"),
    ("demo --plot crawls.gif", "--plot: must be a file name in .png or .svg"),
    ("demo --plot no/such/folder/a.png", "--plot: there is no folder 'no/such/folder'"),
    ("simulate --server-burst 5", "--server-burst needs a token bucket: give --server-algorithm"),
    ("simulate --rate 1e308", "a server that admits 1000000 requests at one instant limits"),
    ("simulate --workers 3 --demand 5", "--demand replaces the workers"),
    ("simulate --burst 50", "algorithm=TokenBucket(burst=50.0)"),
    ("simulate --burst 0", "--burst: must be a number above 0"),
    ("simulate --jitter -1", "--jitter: must be a number of seconds, 0 or more"),
    ("probe ftp://a", "'ftp://a' is no URL: it does not begin with http:// or https://"),
    ("probe ''", "'' is empty"),
    ("probe me:secret@example.org", "'***@example.org' is no URL"),
    ("probe http://a/ --max-requests 9", "are for --find-limit: give it as well"),
    ("probe http://a/ --concurrency 2", "are for --find-limit: give it as well"),
]


def test_wrong_arguments_are_named_before_anything_is_sent(command: Command, out: Path) -> None:
    out.write_text("http://127.0.0.1:1/\n")
    failing: list[object] = []
    for line, complaint in WRONG:
        ended = command(*shlex.split(line.replace("{file}", str(out))))
        fits = ended.status == 2 and ended.printed == "" and complaint in ended.messages
        # Neither a secret, nor a name of Python.
        if not fits or "secret" in ended.messages or "Rate." in ended.messages:
            failing.append((line, ended))
    assert failing == []
    assert out.read_text() == "http://127.0.0.1:1/\n"


def test_unknown_or_missing_argument_prints_usage_and_no_other(command: Command) -> None:
    for line in ("fetch --rate", "probe", "demo --wor", "simulate --no"):
        messages, name = command(*line.split()).messages, line.split(maxsplit=1)[0]
        assert messages.startswith(f"usage: aiothrottle {name} ")
        assert f"aiothrottle {name}: error: " in messages
    for line in ("demo --rate fast", "probe http://a/ -H no-colon", "fetch http://a/ -q -v"):
        (error,) = command(*line.split()).messages.splitlines()
        assert error.startswith(f"aiothrottle {line.split(maxsplit=1)[0]}: error: ")


def test_list_in_the_other_format_is_rejected(tmp_path: Path, command: Command, out: Path) -> None:
    line, json_line = "http://127.0.0.1:9/\n", '{"url": "http://127.0.0.1:9/"}\n'
    listed = tmp_path / "list"
    for option, text, expected in (
        ("--input-file", json_line.encode(), "give it with --requests"),
        ("--requests", line.encode(), "give it with --input-file"),
        ("--input-file", gzip.compress(line.encode()), "give it as text in UTF-8"),
        ("--requests", gzip.compress(json_line.encode()), "give it as text in UTF-8"),
        ("--input-file", line.encode("utf-16"), "give it as text in UTF-8"),
    ):
        listed.write_bytes(text * 50)
        ended = command("fetch", option, listed, "-o", out)
        (error,) = ended.messages.splitlines()
        assert expected in error
        assert (ended.status, out.read_text()) == (2, "")


def test_fetch_needs_a_list(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.setattr(os, "isatty", (0).__eq__)  # of standard input
    ended = command("fetch")
    assert ended.status == 2
    assert "no URLs: give some, or a list by --input-file or on standard input" in ended.messages


# ---- completion ------------------------------------------------------------------------------

BASH = shutil.which("bash")
COMPLETED = {
    "fe": "fetch",
    "comp": "completion",
    "fetch --per-host-": "--per-host-concurrency",
    "simulate --algorithm token": "token-bucket",
    "probe --find": "--find-limit",
    "demo --js": "--json",
    "fetch -i urls": "urls.txt",
    "completion z": "zsh",
}


@pytest.mark.skipif(BASH is None or sys.platform == "win32", reason="there is no bash")
def test_bash_completes(tmp_path: Path) -> None:
    pytest.importorskip("shtab")
    # In a process, since shtab names the program that runs.
    code = f"import sys; sys.argv[1:] = ['completion', 'bash']; {COMMAND}"
    run = run_program(sys.executable, *STRICT, "-c", code)
    assert (run.returncode, run.stderr) == (0, "")
    script = tmp_path / "aiothrottle.bash"
    script.write_text(run.stdout)
    (tmp_path / "urls.txt").touch()
    lines = [f"source {script}"]
    for line in COMPLETED:
        lines.append(f"COMP_WORDS=(aiothrottle {line}); COMP_CWORD={len(line.split())}")
        lines.append('COMPREPLY=(); _shtab_aiothrottle; echo "${COMPREPLY[*]}"')
    printed = subprocess.check_output([str(BASH), "-c", "\n".join(lines)], cwd=tmp_path, text=True)
    assert dict(zip(COMPLETED, printed.splitlines(), strict=True)) == COMPLETED


MISSING = {
    "completion bash": ("shtab", "cli"),
    "demo --plot a.png": ("matplotlib", "plot"),
    "simulate --plot a.png": ("matplotlib", "plot"),
    "fetch http://127.0.0.1:1/ --rate 1 --store redis://h": ("redis", "redis"),
    "fetch http://127.0.0.1:1/ --rate 1 --store mongodb://h": ("pymongo", "mongodb"),
    "fetch http://127.0.0.1:1/ --rate 1 --store memcached://h": ("emcache", "memcached"),
}
# The modules that import a driver.
STORES = ("aiothrottle.stores.redis", "aiothrottle.stores.mongo", "aiothrottle.stores.memcached")


@pytest.mark.parametrize("arguments", MISSING)
def test_missing_package_is_named(
    arguments: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, extra = MISSING[arguments]
    for name in [name for name in sys.modules if name.startswith((f"{package}.", *STORES))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    ended = command(*arguments.split())
    assert (ended.status, ended.printed) == (2, ""), "no run that ends in nothing"
    assert f"pip install 'aiothrottle-client[{extra}]'" in ended.messages


@pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")
@pytest.mark.parametrize(
    ("arguments", "closed", "status", "printed", "messages"),
    [
        ("fetch ftp://x", "2", 1, '{"url": "ftp://x"', ""),
        ("fetch ftp://x", "1", 2, "", "aiothrottle fetch: error: standard output cannot be wr"),
        ("fetch -i {file} -i -", "0", 2, "", "aiothrottle fetch: error: standard input cannot"),
        ("probe http://x", "0", 2, "", "This sends one GET request to http://x."),
        ("--help", "1", 3, "", "aiothrottle: the output cannot be written: Bad file descriptor"),
    ],
)
def test_standard_stream_may_be_closed(
    arguments: str, closed: str, status: int, printed: str, messages: str, tmp_path: Path
) -> None:
    urls = tmp_path / "urls"
    urls.write_text("ftp://x\n")
    command = [sys.executable, "-m", "aiothrottle", *arguments.format(file=urls).split()]
    run = run_program("sh", "-c", f'exec "$@" {closed}>&-', "sh", *command)
    assert (run.returncode, "Traceback" in run.stderr) == (status, False), run.stderr
    assert run.stdout.startswith(printed)
    assert run.stderr.startswith(messages)


@pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")
@pytest.mark.parametrize(
    "redirected", ["-i index.jsonl >> {0}", "- < {0} >> {0}", "- --output-dir . --resume < {0}"]
)
def test_list_is_not_the_output(redirected: str, tmp_path: Path) -> None:
    urls = tmp_path / "index.jsonl"
    urls.write_text("ftp://x\n")
    fetch = f"{sys.executable} -m aiothrottle fetch {redirected.format(urls.name)}"
    run = run_program("sh", "-c", f"cd {tmp_path} && exec {fetch}")
    assert (run.returncode, urls.read_text()) == (2, "ftp://x\n")
    assert "is the output, too: name another output" in run.stderr


def test_output_in_another_encoding_is_escaped(serve: Serve) -> None:
    server = serve(to("http://host/\N{SNOWMAN}"))
    probe = [sys.executable, "-m", "aiothrottle", "probe", "--yes", str(server.url)]
    run = run_program(*probe, PYTHONIOENCODING="latin-1")
    assert (run.returncode, "http://host/\\u2603" in run.stdout) == (0, True), run.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="another platform")
def test_full_disk_is_one_line() -> None:
    problem = "output cannot be written: No space left on device"
    # Buffered until the end, or not, or found before anything is sent.
    cases: list[tuple[list[str], str, int, str]] = [
        ([], "--help", 3, f"aiothrottle: the {problem}"),
        (["-u"], "simulate --seconds 5", 3, f"aiothrottle: the {problem}"),
        ([], "fetch example.org", 2, f"aiothrottle fetch: error: standard {problem}"),
    ]
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        runs = [
            subprocess.Popen(
                [sys.executable, *flags, "-m", "aiothrottle", *arguments.split()],
                env=ENVIRONMENT,
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
            )
            for flags, arguments, _, _ in cases
        ]
        for run, (_, _, status, message) in zip(runs, cases, strict=True):
            _, messages = run.communicate()
            assert (run.returncode, messages.splitlines()[-1]) == (status, message), run.args
            assert messages.count("cannot be written") == 1, messages
            assert "Traceback" not in messages
