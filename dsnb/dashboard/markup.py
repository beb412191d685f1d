"""Markup that cannot be injected into: what is not `Html` already is escaped when it goes in.

Names of jobs, trainers and functions are the user's, and some come from other machines; so no panel pastes strings.
"""

from __future__ import annotations

from html import escape

_VOID_ELEMENTS = frozenset({"br", "hr", "input"})


class Html(str):
    """Text that is markup, made by `tag` or `join`."""

    __slots__ = ()


def tag(name: str, *inner: object, **attributes: object) -> Html:
    """One element.

    Args:
        name: The element's name, as in `span`.
        *inner: What stands in it; `Html` as it is, None not at all, anything else as escaped text.
        **attributes: `class_` is `class`, `data_job` is `data-job`; None and False are left out, True has no value.

    Example:
        >>> tag("b", "a < b", class_="name", data_job="x")
        '<b class="name" data-job="x">a &lt; b</b>'
    """
    head = name + "".join(_attribute(key, value) for key, value in attributes.items())
    return Html(f"<{head}>" if name in _VOID_ELEMENTS else f"<{head}>{join(*inner)}</{name}>")


def join(*parts: object) -> Html:
    """The parts one after the other, escaped where they are not markup."""
    return Html("".join(part if isinstance(part, Html) else escape(str(part)) for part in parts if part is not None))


def number(text: str, field: str, value: float | None, **attributes: object) -> Html:
    """A number with its exact value beside the text that is read: tests and scripts find it by `data-field`."""
    return tag("span", text, data_field=field, data_value=value, **attributes)


def _attribute(key: str, value: object) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")  # SVG's own names (viewBox) have no dash, and keep their case
    return f" {name}" if value is True else f' {name}="{escape(str(value))}"'
