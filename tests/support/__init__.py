"""What several test files use: servers, clients, schedules, and times."""

import os
import sys
import tempfile

if sys.dont_write_bytecode:
    # Each worker and each process would compile all that it imports: so the first one does it.
    _BYTECODE = tempfile.TemporaryDirectory(prefix="aiothrottle-bytecode-")
    os.environ |= {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": _BYTECODE.name}
