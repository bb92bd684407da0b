"""Probes the limits of a server: ``aiothrottle probe``."""
