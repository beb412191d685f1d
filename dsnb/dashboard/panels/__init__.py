"""The panels of the dashboard, one in a file, in the order in which a user asks.

Each has pure functions that turn a `View` into rows of plain data and those into markup; `PANELS` names their places
on the page. Only `throughput` is a figure and knows Bokeh.
"""
