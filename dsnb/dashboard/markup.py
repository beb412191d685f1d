"""HTML construction that is safe against injection: everything that is not `Html` is escaped when it is inserted.

Names of jobs, trainers and functions come from users, some on other machines; so no panel concatenates strings.
"""

from __future__ import annotations

from html import escape

_VOID_ELEMENTS = frozenset({"br", "hr", "img", "input"})


class Html(str):
    """A string that is known to be safe HTML, made by `tag` or `join`."""

    __slots__ = ()


def tag(name: str, *inner: object, **attributes: object) -> Html:
    """Build one HTML element.

    Args:
        name: The element's name, as in `span`.
        *inner: The contents. `Html` is inserted as it is, None is omitted, anything else becomes escaped text.
        **attributes: `class_` becomes `class`, `data_job` becomes `data-job`. None and False are omitted, True has no
            value.

    Example:
        >>> tag("b", "a < b", class_="name", data_job="x")
        '<b class="name" data-job="x">a &lt; b</b>'
    """
    head = name + "".join(_attribute(key, value) for key, value in attributes.items())
    return Html(f"<{head}>" if name in _VOID_ELEMENTS else f"<{head}>{join(*inner)}</{name}>")


def join(*parts: object) -> Html:
    """Concatenate the parts; those that are not `Html` are escaped."""
    return Html("".join(part if isinstance(part, Html) else escape(str(part)) for part in parts if part is not None))


def number(text: str, field: str, value: float | None, **attributes: object) -> Html:
    """A number as displayed text, with its exact value in attributes: tests and scripts find it by `data-field`."""
    return tag("span", text, data_field=field, data_value=value, **attributes)


def _attribute(key: str, value: object) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")  # keeps the case: SVG attributes (viewBox) are case-sensitive
    return f" {name}" if value is True else f' {name}="{escape(str(value))}"'
