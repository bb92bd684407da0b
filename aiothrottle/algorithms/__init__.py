"""How a bucket drains: one pure algorithm a file, with state and time as arguments."""

from aiothrottle.algorithms.algorithm import Algorithm
from aiothrottle.algorithms.rolling_window import RollingWindow
from aiothrottle.algorithms.token_bucket import TokenBucket
from aiothrottle.algorithms.unlimited import Unlimited

__all__ = ["Algorithm", "RollingWindow", "TokenBucket", "Unlimited"]
