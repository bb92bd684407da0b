"""Tries an algorithm against a simulated server: ``aiothrottle simulate``."""
