"""Fetches lists of URLs, under limits, to JSON lines or to a folder: ``aiothrottle fetch``."""
