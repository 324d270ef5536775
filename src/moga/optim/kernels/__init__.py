"""Compiled forms of the steps in ``update.py``: same numbers to rounding, one pass over memory."""
