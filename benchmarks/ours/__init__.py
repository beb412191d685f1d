"""dsnb as a contender: like the peers, run in an environment of its own; see `benchmarks.peers.serving`."""
