"""Experiments: does the learning rate that was tuned on a narrow model still hold on a wide one?

Nothing is imported here. Torch-free parts (`records`, `fit`) stay importable without the parts that train.
"""
