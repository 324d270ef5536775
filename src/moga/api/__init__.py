"""The study from Python: :func:`moga.study.transfer` and its siblings, which the commands call too.

Nothing is imported here; `moga.study` gives the names.
"""
