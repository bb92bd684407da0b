"""Metrics of limiters.

`aiothrottle.metrics.prometheus` needs the extra ``prometheus``, and
`aiothrottle.metrics.opentelemetry` the extra ``opentelemetry``.
"""
