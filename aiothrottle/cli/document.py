"""``--json``: one JSON document on the standard output, and nothing else there."""

import argparse
import json
from collections.abc import Mapping

from aiothrottle.rate import Rate

__all__ = ["add_json", "print_document", "rate_value"]


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add the option."""
    parser.add_argument(
        "--json",
        action="store_true",
        help="print the results as one JSON document, and nothing else, to standard output",
    )


def print_document(document: Mapping[str, object]) -> None:
    """Print the document. It must hold no NaN: JSON has none."""
    print(json.dumps(document, indent=2, allow_nan=False), flush=True)


def rate_value(rate: Rate) -> dict[str, float]:
    """Return a rate as it stands in a document: tokens per seconds."""
    return {"limit": rate.limit, "period": rate.period}
