"""Installs servers into one folder for temporary files, once, and never into the system.

From Debian's packages, PyPI and npm, with the clients and the indexes that this machine is set up
for. What is installed stays in the folder until it is deleted.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

__all__ = ["InstallError", "debian", "libraries", "npm", "wheels"]

_PATIENCE = 300.0  # seconds of one installation


class InstallError(Exception):
    """A server that cannot be installed on this machine; the text says why."""


def debian(*packages: str) -> Path:
    """Return a folder with the packages' files, as they would stand below the root folder.

    Raises:
        InstallError: There is no apt-get, or it cannot download them.
    """
    return _installed("debian", packages)


def libraries(root: Path) -> dict[str, str]:
    """Return the environment in which a program of `debian` finds its libraries."""
    folders = [str(it) for it in sorted(root.glob("usr/lib/*-linux-gnu*"))]
    return {"LD_LIBRARY_PATH": ":".join(folders)}


def wheels(*packages: str) -> Path:
    """Return a folder with a virtual environment, "env", that has the packages.

    Raises:
        InstallError: They cannot be installed.
    """
    return _installed("wheels", packages)


def npm(*packages: str) -> Path:
    """Return a folder with node_modules.

    Raises:
        InstallError: There is no npm, or they cannot be installed.
    """
    return _installed("npm", packages)


@cache
def _folder() -> Path:
    chosen = os.environ.get("AIOTHROTTLE_REAL_SERVERS")
    folder = Path(chosen or Path(tempfile.gettempdir()) / f"aiothrottle-servers-{os.getuid()}")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid():  # what is in it is executed
        raise PermissionError(f"{folder} belongs to another user; set AIOTHROTTLE_REAL_SERVERS")
    return folder


@cache
def _installed(kind: str, packages: Sequence[str]) -> Path:
    name = hashlib.sha256(" ".join(packages).encode()).hexdigest()[:8]
    place = _folder() / f"{kind}-{name}"
    if (place / "complete").exists():
        return place
    shutil.rmtree(place, ignore_errors=True)  # of an installation that was interrupted
    place.mkdir()
    print(f"installing {', '.join(packages)}", flush=True)
    _WAYS[kind](place, packages)
    (place / "complete").touch()
    return place


def _debian(place: Path, packages: Sequence[str]) -> None:
    lists, downloads = place / "lists", place / "cache"
    (lists / "partial").mkdir(parents=True)
    (downloads / "archives" / "partial").mkdir(parents=True)
    apt = ["apt-get", "-qq", "-o", "Debug::NoLocking=1"]
    apt += ["-o", f"Dir::State::lists={lists}", "-o", f"Dir::Cache={downloads}"]
    _run(place, [*apt, "update"])
    # Packages that they need, and that this machine does not have, are downloaded as well.
    options = ["--download-only", "--reinstall", "--no-install-recommends", "--yes"]
    _run(place, [*apt, "install", *options, *packages])
    for package in sorted((downloads / "archives").glob("*.deb")):
        _run(place, ["dpkg", "-x", str(package), str(place)])
    shutil.rmtree(lists)
    shutil.rmtree(downloads)


def _wheels(place: Path, packages: Sequence[str]) -> None:
    _run(place, [sys.executable, "-m", "venv", str(place / "env")])
    pip = [str(place / "env" / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
    _run(place, [*pip, "install", "--quiet", *packages])


def _npm(place: Path, packages: Sequence[str]) -> None:
    (place / "package.json").write_text("{}", encoding="utf-8")
    options = ["--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]
    _run(place, ["npm", "install", *options, *packages])


_WAYS = {"debian": _debian, "wheels": _wheels, "npm": _npm}


def _run(place: Path, command: Sequence[str]) -> None:
    try:
        result = subprocess.run(  # noqa: S603 - ours
            command,
            cwd=place,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
            check=False,
        )
    except FileNotFoundError:
        raise InstallError(f"no {command[0]} here") from None
    except subprocess.TimeoutExpired:
        raise InstallError(f"{command[0]} did not end within {_PATIENCE:g} s") from None
    if result.returncode:
        lines = (result.stderr or result.stdout).strip().splitlines() or ["no message"]
        raise InstallError(f"{command[0]} failed: {lines[-1]}")
