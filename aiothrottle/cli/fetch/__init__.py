"""Fetches lists of URLs, under limits, to JSON lines or to a folder: ``aiothrottle fetch``.

Imports point down this list: the command with its arguments, checks, run, report and trace;
`sending`; `reading`; `results`.
"""
