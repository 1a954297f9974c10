"""The name under which `DataTask` reads a JSONL file."""

from upweight.tasks.data import DataTask as JsonlTask

__all__ = ["JsonlTask"]
