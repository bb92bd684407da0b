"""``aiothrottle completion``: the scripts, and what bash completes with one of them."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from aiothrottle.cli import main
from tests.background import COMMAND, ENVIRONMENT

pytest.importorskip("shtab")

BASH = shutil.which("bash")
COMPLETE = """\
source "$1"; shift
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_shtab_aiothrottle
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "aiothrottle.bash"
    code = f"import sys; sys.argv[1:] = ['completion', 'bash']; {COMMAND}"
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=ENVIRONMENT,
        check=True,
        capture_output=True,
    )
    path.write_bytes(ended.stdout)
    return path


@pytest.mark.skipif(BASH is None or sys.platform == "win32", reason="there is no bash")
@pytest.mark.parametrize(
    ("words", "completed"),
    [
        (["fe"], ["fetch"]),
        (["comp"], ["completion"]),
        (["fetch", "--per-host-"], ["--per-host-concurrency"]),
        (["simulate", "--algorithm", "token"], ["token-bucket"]),
        (["probe", "--find"], ["--find-limit"]),
        (["demo", "--js"], ["--json"]),
        (["fetch", "-i", "urls"], ["urls.txt"]),
        (["completion", "z"], ["zsh"]),
    ],
)
def test_bash_completes(
    script: Path, tmp_path: Path, words: list[str], completed: list[str]
) -> None:
    (tmp_path / "urls.txt").touch()
    assert BASH is not None
    ended = subprocess.run(
        [BASH, "-c", COMPLETE, "bash", script, "aiothrottle", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.split() == completed


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_script_names_all_commands(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for name in ("fetch", "probe", "simulate", "demo", "completion", "rate"):
        assert name in script


def test_unknown_shell_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["completion", "nosh"])
    assert ended.value.code == 2
    assert "invalid choice: 'nosh'" in capsys.readouterr().err


def test_missing_shtab_error_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    with pytest.raises(SystemExit) as ended:
        main(["completion", "bash"])
    assert ended.value.code == 2
    assert "pip install 'aiothrottle-client[cli]'" in capsys.readouterr().err
