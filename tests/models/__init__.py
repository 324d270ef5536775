"""Tiny models that many tests share."""
