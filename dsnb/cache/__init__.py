"""What outlives a run: recordings of datasets, and results of functions."""
