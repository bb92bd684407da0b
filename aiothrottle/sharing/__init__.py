"""Limits that are counted in a store: the line in front of one, and what to do while it fails."""
