"""Each part of aiothrottle/_core alone."""
