"""Where training curves go. A tracker's outage never reaches training: it is said once, and training goes on.

`gs.log_to("mlflow")` of what `attach` or `init` returned brings the reports of rank 0 there, by a thread of their own;
`Logger` and `JsonlTracker` do it where they are called.
"""

from ._jsonl import JsonlTracker
from ._logger import Logger, Tracker
from ._record import measurements

__all__ = ["JsonlTracker", "Logger", "Tracker", "measurements"]
