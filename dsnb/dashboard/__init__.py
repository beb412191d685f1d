"""The Panel application that shows a service live: which trainers wait or lose data, and what the workers do.

Data flow: the service publishes snapshots (`monitor/watch`). One `Feed` in the process keeps the last few minutes of
them with their rates. Each open page reads the feed twice a second and writes what changed into its document. Panels
are pure functions from a `View` to markup; only `page` and `panels/throughput` use Bokeh.

`import dsnb` imports nothing from here: panel and bokeh take a second to import and are an optional dependency.
"""
