"""Integrations of clients whose hooks need more than a few lines; "Works with" has the rest.

A module imports its client, if at all, only when it is used.
"""
