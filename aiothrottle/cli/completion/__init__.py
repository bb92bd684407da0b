"""Completes the command line in a shell: ``aiothrottle completion``."""
