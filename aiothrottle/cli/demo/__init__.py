"""Crawls a server on this machine, with and without a limiter: ``aiothrottle demo``."""
