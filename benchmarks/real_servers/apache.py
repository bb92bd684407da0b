"""Apache with mod_evasive: a page counter that answers 403, and blocks for a second."""

from collections.abc import Sequence

from real_servers.install import debian, libraries
from real_servers.server import THROTTLES_BY_403, Command, Place, Server

__all__ = ["SERVERS"]

_CONF = """\
ServerRoot {folder}
ServerName localhost
PidFile {folder}/apache.pid
Listen 127.0.0.1:{port}
LoadModule mpm_event_module {modules}/mod_mpm_event.so
LoadModule authz_core_module {modules}/mod_authz_core.so
LoadModule dir_module {modules}/mod_dir.so
LoadModule evasive20_module {modules}/mod_evasive20.so
ErrorLog {folder}/error.log
LogFormat "%{{sec}}t.%{{msec_frac}}t %>s" counted
CustomLog {log} counted
DocumentRoot {folder}
DirectoryIndex index.html
DOSPageCount 20
DOSPageInterval 1
DOSSiteCount 1000
DOSSiteInterval 1
DOSBlockingPeriod 1
"""


def _commands(place: Place) -> Sequence[Command]:
    root = debian("apache2-bin", "libapache2-mod-evasive")
    place.write("index.html", "Here you are.\n")
    conf = _CONF.format(
        folder=place.folder,
        log=place.log,
        port=place.port,
        modules=root / "usr/lib/apache2/modules",
    )
    # -X: one process, because the module counts in each by itself.
    argv = [str(root / "usr/sbin/apache2"), "-X", "-f", place.write("apache.conf", conf)]
    return [Command(argv, libraries(root))]


SERVERS = [Server("Apache mod_evasive", _commands, line=THROTTLES_BY_403)]
