"""The one stateful object: SteepestDescent, and the update it applies."""
