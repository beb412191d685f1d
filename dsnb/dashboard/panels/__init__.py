"""The panels of the dashboard, one module each.

Each has pure functions that turn a `View` into rows of plain data, and the rows into markup; `PANELS` in `page` assigns
them to the slots of the page. Only `throughput` is a figure and uses Bokeh.
"""
