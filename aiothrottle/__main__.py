"""``python -m aiothrottle`` is the command ``aiothrottle``."""

import sys

from aiothrottle.cli import main

sys.exit(main())
