"""Compiled forms of the steps in ``update.py``, in C and in Triton: same numbers to rounding, one pass over memory."""
