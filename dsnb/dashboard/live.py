"""The script that Jupyter's proxy runs with `panel serve` (see `dsnb.dashboard.proxy`)."""

from dsnb.dashboard.app import serve_here

serve_here()
