"""The same step on any number of ranks: shards of DTensor parameters, and spectral work spread over ranks."""
