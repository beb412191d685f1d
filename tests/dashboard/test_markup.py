"""What a user's names could do to the page."""

from __future__ import annotations

from dsnb.dashboard.markup import Html, join, number, tag


def test_text_and_attributes_are_escaped() -> None:
    nasty = '"><script>alert(1)</script>'
    made = tag("td", nasty, title=nasty, data_job=nasty)
    assert "<script>" not in made
    assert made.count("&lt;script&gt;") == 3


def test_markup_goes_in_as_it_is() -> None:
    assert tag("p", tag("b", "a"), " < b") == "<p><b>a</b> &lt; b</p>"


def test_a_class_is_a_class_and_what_is_none_is_left_out() -> None:
    assert tag("i", class_="dot", title=None, hidden=True, data_x=0) == '<i class="dot" hidden data-x="0"></i>'
    assert join("a", None, Html("<br>")) == "a<br>"


def test_a_number_carries_its_exact_value() -> None:
    assert number("1,234", "made", 1234) == '<span data-field="made" data-value="1234">1,234</span>'
