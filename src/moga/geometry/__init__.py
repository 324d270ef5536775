"""Pure functions of tensors: norms, directions, the polar factor and the layouts of stored matrices."""
