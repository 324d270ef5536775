"""The page of unit balls: what steepest descent does to a gradient of two entries and to a 2 x 2 matrix."""
