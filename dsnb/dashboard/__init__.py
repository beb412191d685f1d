"""The Panel application that shows a service live: which trainer waits, who loses data, what the workers do.

The way of a number: the service publishes snapshots (`monitor/watch`), one `Feed` in the process keeps the last few
minutes of them with their rates, each open page looks at the feed twice a second and writes what changed into its
document. Panels are pure functions from a `View` to markup; only `page` and `panels/throughput` know Bokeh.

Nothing here is imported by `import dsnb`: panel and bokeh cost a second and are an extra.
"""
