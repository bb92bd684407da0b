"""Metrics of limiters, for those who watch programs in production.

`aiothrottle.metrics.prometheus` needs the extra ``prometheus``, and
`aiothrottle.metrics.opentelemetry` the extra ``opentelemetry``.
"""
