"""Adapters for libraries that require a class of their own; each module imports its library."""
