"""Which algorithm and which guard does an API need? Any client against any server, on virtual time.

`simulate` lets real limiters, unchanged, loose on a server that is an algorithm and a delay, on a
loop on which waiting takes no time: an hour of a slow API is over in a moment. The same arguments
always give the same outcome.
"""

from aiothrottle.simulation.outcome import Arrival, Outcome, Waits, table
from aiothrottle.simulation.run import simulate
from aiothrottle.simulation.server import RetryAfter, Server

__all__ = ["Arrival", "Outcome", "RetryAfter", "Server", "Waits", "simulate", "table"]
