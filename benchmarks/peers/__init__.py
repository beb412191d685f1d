"""The contenders: each module runs in the environment of the one that it measures, see `serving`."""
