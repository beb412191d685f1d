"""The colours of page and report have enough contrast for small text, in both themes (WCAG AA: 4.5)."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from dsnb.dashboard.page import THEME
from dsnb.dashboard.panels.throughput import AXIS_COLOUR
from dsnb.dashboard.proxy import setup
from dsnb.monitor.html_report import render_html_report
from tests.dashboard.snapshots import snapshot

STYLE = (THEME / "page.css").read_text(encoding="utf-8")
THEMES = (":root", ':root[data-theme="dark"]')
LEVELS = ("good", "warn", "bad")
TEXT, BACKGROUNDS = ("ink", "soft", "faint", "good", "warn", "bad", "accent"), ("surface", "sunk", "bg")


WHITE = (1.0, 1.0, 1.0)
METER_SHARE, HEAVIEST_SHARE, DARK_BRIGHTNESS = 0.24, 0.5, 1.35
"""As the style sheet has them: how much of its colour a bar behind a number has, and how the figure is brightened."""

Colour = tuple[float, float, float]


def colours(selector: str) -> dict[str, Colour]:
    """The colours that a theme has, as red, green and blue from 0 to 1; those that show through lie on its surface."""
    rules = dict.fromkeys((":root", selector))
    found: dict[str, str] = {}
    for one in rules:
        (rule,) = re.findall(re.escape(one) + r" \{(.*?)\n\}", STYLE, re.DOTALL)
        found |= dict(re.findall(r"--([\w-]+): #([0-9a-f]{8}|[0-9a-f]{6}|[0-9a-f]{3});", rule))
    surface = parse(found["surface"])
    return {
        name: mixed(parse(digits), int(digits[6:] or "ff", 16) / 255 if len(digits) > 3 else 1.0, surface)
        for name, digits in found.items()
    }


def parse(digits: str) -> Colour:
    whole = digits if len(digits) > 3 else "".join(2 * digit for digit in digits)
    red, green, blue = (int(whole[at : at + 2], 16) / 255 for at in (0, 2, 4))
    return red, green, blue


def mixed(colour: Colour, share: float, other: Colour) -> Colour:
    red, green, blue = (share * one + (1 - share) * two for one, two in zip(colour, other, strict=True))
    return red, green, blue


def luminance(colour: Colour) -> float:
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(text: Colour, background: Colour) -> float:
    bright, dark = sorted((luminance(text), luminance(background)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("text", TEXT)
@pytest.mark.parametrize("background", BACKGROUNDS)
def test_text_has_enough_contrast(theme: str, text: str, background: str) -> None:
    found = colours(theme)
    assert contrast(found[text], found[background]) >= 4.5


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("level", LEVELS)
def test_text_on_the_wash_of_a_level_has_enough_contrast(theme: str, level: str) -> None:
    found = colours(theme)
    for text in ("ink", "soft", level):
        assert contrast(found[text], found[f"{level}-wash"]) >= 4.5, text
    assert contrast(found["surface"], found[level]) >= 4.5, "the sign of a verdict"


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("level", [*LEVELS, "accent"])
def test_numbers_on_bars_have_enough_contrast(theme: str, level: str) -> None:
    assert "opacity: 0.24;" in rule_of(".meter i")
    assert "opacity: 0.5;" in rule_of(".stage.heaviest .meter i")
    assert "color: var(--ink);" in rule_of(".meter em")
    found = colours(theme)
    assert contrast(found["ink"], mixed(found[level], METER_SHARE, found["sunk"])) >= 4.5
    assert contrast(found["ink"], mixed(found["accent"], HEAVIEST_SHARE, found["sunk"])) >= 4.5


@pytest.mark.parametrize("theme", THEMES)
def test_a_page_that_has_ended_is_grey_and_as_easy_to_read(theme: str) -> None:
    (rule,) = re.findall(r"body:has\(\.banner\.ended.*\{(.*)\}$", STYLE, re.MULTILINE)
    (share,) = re.fullmatch(r" filter: grayscale\(([\d.]+)\); ", rule).groups()  # type: ignore[union-attr]
    found = {name: greyed(colour, float(share)) for name, colour in colours(theme).items()}
    for text in TEXT:
        for background in BACKGROUNDS:
            assert contrast(found[text], found[background]) >= 4.5, (text, background)
    for level in LEVELS:
        assert contrast(found[level], found[f"{level}-wash"]) >= 4.5, level


def greyed(colour: Colour, share: float) -> Colour:
    """What the filter `grayscale(share)` makes of a colour."""
    red, green, blue = colour
    return mixed((0.2126 * red + 0.7152 * green + 0.0722 * blue,) * 3, share, colour)


@pytest.mark.parametrize("theme", THEMES)
def test_the_button_that_asks_back_has_enough_contrast(theme: str) -> None:
    assert contrast(WHITE, colours(theme)["danger"]) >= 4.5


def test_the_labels_of_the_figure_have_enough_contrast() -> None:
    assert f"brightness({DARK_BRIGHTNESS})" in STYLE
    label = parse(AXIS_COLOUR.removeprefix("#"))
    red, green, blue = (min(1.0, DARK_BRIGHTNESS * part) for part in label)
    assert contrast(label, colours(THEMES[0])["surface"]) >= 4.5
    assert contrast((red, green, blue), colours(THEMES[1])["surface"]) >= 4.5


def rule_of(selector: str) -> str:
    """The declarations of a rule of one line."""
    (found,) = re.findall(rf"^{re.escape(selector)} \{{(.*)\}}$", STYLE, re.MULTILINE)
    return str(found)


def test_no_text_has_a_colour_that_is_not_checked_here() -> None:
    used = set(re.findall(r"[{;\s]color: ([^;]+);", STYLE))
    known = {f"var(--{name})" for name in (*TEXT, "level", "surface")} | {"#fff", "inherit"}
    assert used <= known
    white = [line for line in STYLE.splitlines() if re.search(r"[{;\s]color: #fff;", line)]
    assert all(".act.armed" in line for line in white)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_text_of_a_report_has_enough_contrast(theme: str) -> None:
    page = render_html_report([snapshot()], ())
    light, dark = re.findall(r":root\{(.*?)\}", page, re.DOTALL)
    found = {name: parse(digits) for name, digits in re.findall(r"--(\w+):#(\w+)", dark if theme == "dark" else light)}
    for text in ("ink", "soft", "good", "bad"):
        assert contrast(found[text], found["back"]) >= 4.5, text
    assert contrast(found["ink"], found["card"]) >= 4.5


def test_the_tile_in_jupyterlab_s_launcher_has_an_icon() -> None:
    icon = Path(setup()["launcher_entry"]["icon_path"])
    assert ET.parse(icon).getroot().tag == "{http://www.w3.org/2000/svg}svg"
