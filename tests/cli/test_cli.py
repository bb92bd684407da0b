"""The command line: its arguments, its output, and its exit status."""

import os
import signal
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import aiothrottle
from aiothrottle.cli import main

QUICK = ["demo", "--pages", "40", "--rate", "100/s"]
PYTHON = [sys.executable, "-W", "error", "-X", "dev"]
# The package under test, installed or not, is the one that the subprocesses run.
ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(aiothrottle.__file__).parent.parent)}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PYTHON, *arguments], env=ENVIRONMENT, capture_output=True, text=True, check=False
    )


def test_demo_runs_as_a_module() -> None:
    ended = run("-m", "aiothrottle", *QUICK)
    assert ended.returncode == 0, ended.stderr
    assert "aiothrottle's crawl is complete" in ended.stdout
    assert "Warning" not in ended.stderr


def test_installed_command_is_main() -> None:
    commands = entry_points(group="console_scripts", name="aiothrottle")
    if not commands:
        pytest.skip("the package is not installed")
    assert {command.load() for command in commands} == {main}


def test_without_arguments_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "demo" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--help"], ["demo", "--help"]])
def test_help_is_no_failure(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("usage: aiothrottle")


def test_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"aiothrottle {aiothrottle.__version__}\n"


def test_options_reach_the_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--pages", "7", "--rate", "25/500ms", "--concurrency", "2"]) == 0
    printed = capsys.readouterr().out
    assert "has 7 pages" in printed
    assert "25 requests in any 0.5 s, 2 at once" in printed


def test_single_request_has_no_plural(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--pages", "2", "--rate", "1/20ms"]) == 0
    assert "1 request in any 0.02 s" in capsys.readouterr().out


def test_rate_may_be_a_number_per_second(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--pages", "7", "--rate", "25"]) == 0
    assert "25 requests in any second" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["nonsense"], "invalid choice: 'nonsense'"),
        (["demo", "--rate", "fast"], "--rate: cannot read 'fast' as a rate"),
        (["demo", "--rate", "nan"], "--rate: rate must be finite and above zero, got nan"),
        (["demo", "--rate", "-5"], "--rate: rate must be finite and above zero, got -5.0"),
        (["demo", "--rate", "0"], "--rate: rate must be finite and above zero, got 0.0"),
        (["demo", "--rate", "0/s"], "--rate: the limit of a rate must be a finite number"),
        (["demo", "--rate", "10/fortnight"], "unknown unit 'fortnight'"),
        (["demo", "--rate", "2.5/s"], "--rate: must be a rate of whole requests, got '2.5/s'"),
        (["demo", "--rate", "0.5"], "--rate: must be a rate of whole requests, got '0.5'"),
        (["demo", "--concurrency", "0"], "--concurrency: must be a whole number from 1 to 100"),
        (["demo", "--concurrency", "101"], "--concurrency: must be a whole number from 1 to 100"),
        (["demo", "--pages", "-1"], "--pages: must be a whole number from 1 to 100000, got '-1'"),
        (["demo", "--pages", "many"], "--pages: must be a whole number from 1 to 100000"),
        (["demo", "--plot", "crawls.gif"], "--plot: must be a file name in .png or .svg"),
        (["demo", "--plot", "no/such/folder/a.png"], "--plot: there is no folder 'no/such/folder'"),
    ],
)
def test_invalid_argument_is_rejected_before_the_run(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    printed, errors = capsys.readouterr()
    assert printed == ""
    assert complaint in errors


@pytest.mark.parametrize("command", ["fetch", "probe", "simulate", "demo"])
def test_unknown_option_prints_usage_of_its_command(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--nonsense", *(["http://127.0.0.1/"] if command == "probe" else [])])
    assert ended.value.code == 2
    errors = capsys.readouterr().err
    assert errors.startswith(f"usage: aiothrottle {command} ")
    assert f"aiothrottle {command}: error: unrecognized arguments: --nonsense" in errors


@pytest.mark.parametrize(
    "arguments", [["demo", "--rate", "fast"], ["probe", "http://a/", "-H", "no colon"]]
)
def test_invalid_value_prints_no_usage(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith(f"aiothrottle {arguments[0]}: error: argument ")


@pytest.mark.parametrize("arguments", [["fetch", "--rate"], ["probe"], ["demo", "--workers"]])
def test_missing_argument_prints_usage(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(f"usage: aiothrottle {arguments[0]} ")


def test_command_imports_only_what_it_needs() -> None:
    code = (
        "import sys; from aiothrottle.cli import main\n"
        "try: main(['fetch', '--help'])\n"
        "except SystemExit: print(sorted(sys.modules), file=sys.stderr)"
    )
    loaded = run("-c", code).stderr
    assert "'aiothrottle.cli.fetch'" in loaded
    for other in ("aiothrottle.cli.demo", "aiothrottle.simulation", "aiohttp.web"):
        assert f"'{other}'" not in loaded


def test_missing_matplotlib_error_names_the_package(tmp_path: Path) -> None:
    picture = tmp_path / "crawls.png"
    code = (
        "import sys; sys.modules['matplotlib'] = None; "  # makes its import fail
        "from aiothrottle.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    ended = run("-c", code, *QUICK, "--plot", str(picture))
    assert ended.returncode == 2
    assert "pip install 'aiothrottle-client[plot]'" in ended.stderr
    assert ended.stdout == "", "no crawl that ends in nothing"
    assert not picture.exists()


def test_picture_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "CRAWLS.PNG"
    assert main([*QUICK, "--plot", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_exit_status_is_that_of_the_demo(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    too_long = tmp_path / ("x" * 300 + ".png")
    assert main([*QUICK, "--plot", str(too_long)]) == 1
    assert "The picture cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize(
    "arguments",
    [
        ["demo", "--pages", "5"],
        ["demo", "--pages", "5", "--json"],
        ["simulate", "--seconds", "1"],
    ],
)
def test_closed_output_is_no_traceback(arguments: list[str], *, buffered: bool) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    environment = {**ENVIRONMENT, "PYTHONUNBUFFERED": "" if buffered else "1"}
    command = [*PYTHON, "-m", "aiothrottle", *arguments]
    with os.fdopen(writing, "wb") as output:
        ended = subprocess.run(
            command, env=environment, stdout=output, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (ended.returncode, ended.stderr) == (141, "")


def test_long_example_keeps_its_line_break(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["fetch", "--help"])
    assert "--profile openai \\\n    --rate" in capsys.readouterr().out


@pytest.mark.skipif(sys.platform == "win32", reason="no other process can press Ctrl-C there")
def test_ctrl_c_ends_the_demo_without_a_traceback() -> None:
    code = (
        # A shell that started the tests in the background has switched Ctrl-C off for all of them.
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from aiothrottle.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    with subprocess.Popen(
        [*PYTHON, "-c", code, "demo", "--rate", "1/min"],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as demo:
        assert demo.stdout is not None
        assert "pages" in demo.stdout.readline()  # the demo has begun
        demo.send_signal(signal.SIGINT)
        _, errors = demo.communicate(timeout=30)
    assert demo.returncode == 130
    assert errors.endswith("\nInterrupted.\n")
    assert "Traceback" not in errors
