"""Which algorithm and which guard does an API need? Any client against any server, in virtual time.

`simulate` runs real limiters against a server that is an algorithm and a delay, on a loop on which
waiting takes no time: an hour of a slow API takes milliseconds. The same arguments always have the
same outcome.
"""

from aiothrottle.simulation.outcome import Arrival, Outcome, Waits, table
from aiothrottle.simulation.run import RetryAfter, Server, simulate

__all__ = ["Arrival", "Outcome", "RetryAfter", "Server", "Waits", "simulate", "table"]
