"""Where training curves go. A tracker's outage never reaches training: `Logger` warns once and goes on."""

from ._jsonl import JsonlTracker
from ._logger import Logger, Tracker, measurements

__all__ = ["JsonlTracker", "Logger", "Tracker", "measurements"]
