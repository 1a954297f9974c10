"""The page in a browser: by keyboard, on a phone, in dark and light, its link, its reset, its messages."""

import itertools
from typing import Any

import pytest

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright, which drives the browser, is not installed")

CROWDED = (
    "weights.rewards=1,0,0,1,0.5,0,1,0,0,0,1,1&weights.lengths=200,50,2000,400,16384,1,3000,800,90,10,700,5000"
    "&weights.max_length=20000&weights.others=7&kl.r=88&kl.noise=1.5&clip.rho=0.05&clip.clip=0.05&clip.clip_high=0.05"
    "&clip.dual_clip=none&higher.rare=0.00001&higher.updates=1&ratio.noisy=10&ratio.answers=16&ratio.lengths=1,9999"
    "&mismatch.cap=1e9&mismatch.batches=4"
)
"""A state with much to write in little room."""

WORDS = """() => {
  const seen = [];
  const colour = text => {
    const [r, g, b, a = 1] = text.match(/[0-9.]+/g).map(Number);
    return {rgb: [r, g, b], alpha: a};
  };
  const behind = node => {
    for (; node; node = node.parentElement) {
      const {rgb, alpha} = colour(getComputedStyle(node).backgroundColor);
      if (alpha > 0) return rgb;
    }
    throw new Error("nothing behind");
  };
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some(child => child.nodeType === 3 && child.data.trim());
    const box = node.getBoundingClientRect();
    if (!own || !box.width || box.right < 0 || ["SCRIPT", "STYLE", "NOSCRIPT"].includes(node.tagName)) continue;
    const style = getComputedStyle(node);
    const ink = node instanceof SVGElement ? style.fill : style.color;
    const text = node.textContent.trim().slice(0, 40), size = parseFloat(style.fontSize);
    seen.push({text, size, left: box.left, right: box.right, ink: colour(ink).rgb, paper: behind(node)});
  }
  return seen;
}"""


def luminance(rgb: list[float]) -> float:
    parts = [value / 255 / 12.92 if value <= 10 else ((value / 255 + 0.055) / 1.055) ** 2.4 for value in rgb]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def contrast(one: list[float], other: list[float]) -> float:
    """Of the Web Content Accessibility Guidelines: 4.5 for text, 3 for what a picture shows."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def settle(page: Any) -> None:
    sync_api.expect(page.locator("section[aria-busy=false]")).to_have_count(6, timeout=15_000)


def field(page: Any, panel: str, label: str) -> Any:
    return page.locator(f"#{panel}").get_by_label(label, exact=True)


def number(page: Any, key: str) -> float:
    settle(page)
    return float(page.locator(f"[data-key='{key}']").get_attribute("data-value"))


def values(page: Any) -> dict[str, str]:
    settle(page)
    cells = page.locator("[data-key]").evaluate_all(
        "cells => cells.map(cell => [cell.dataset.key, cell.dataset.value])"
    )
    return dict(cells)


# ---- how it looks


def test_words_can_be_read_and_nothing_sticks_out(window: tuple[Any, int, str]) -> None:
    page, width, _ = window
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    words = page.evaluate(WORDS)
    assert len(words) > 300
    assert [word for word in words if word["left"] < -0.5 or word["right"] > width + 0.5] == []
    assert [word for word in words if word["size"] < 11] == []
    assert [word for word in words if contrast(word["ink"], word["paper"]) < 4.5] == []


def test_no_words_of_a_chart_lie_over_others(window: tuple[Any, int, str]) -> None:
    assert overlaps(window[0]) == []


@pytest.mark.parametrize("width", [390, 1400])
def test_a_crowded_state_stays_readable(width: int, open_page: Any) -> None:
    page = open_page(CROWDED, width=width)
    assert page.locator("[aria-invalid]").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert overlaps(page) == []


def overlaps(page: Any) -> list[tuple[str, str]]:
    """Words in one chart whose boxes share more than a pixel or three."""
    charts = page.evaluate(
        """() => {
          const place = text => {
            const box = text.getBoundingClientRect();
            return [text.textContent, box.left, box.right, box.top, box.bottom];
          };
          const charts = [...document.querySelectorAll("svg[role=img]")];
          return charts.map(chart => [...chart.querySelectorAll("text")].map(place).filter(([text]) => text));
        }"""
    )
    assert len(charts) == 15
    return [
        (one[0], other[0])
        for words in charts
        for one, other in itertools.combinations(words, 2)
        if min(one[2], other[2]) - max(one[1], other[1]) > 1 and min(one[4], other[4]) - max(one[3], other[3]) > 3
    ]


def test_series_stand_out_from_the_paper_and_differ_by_more_than_colour(window: tuple[Any, int, str]) -> None:
    page, _, scheme = window
    looks = page.evaluate(
        """() => {
          const paper = getComputedStyle(document.body).backgroundColor;
          const legend = [...document.querySelectorAll("#mismatch .legend li")];
          const bars = [...document.querySelectorAll("#weights .legend li")];
          const rgb = text => text.match(/[0-9.]+/g).slice(0, 3).map(Number);
          return {
            paper: rgb(paper),
            lines: legend.map(item => getComputedStyle(item.querySelector(".line")))
              .map(style => [rgb(style.stroke), style.strokeDasharray]),
            marks: legend.map(item => item.querySelector(".mark").outerHTML.replace(/s[0-3]/, "")),
            bars: bars.map(item => [rgb(getComputedStyle(item.querySelector(".solid")).fill),
              getComputedStyle(item.querySelector(".hatch")).fill]),
          };
        }"""
    )
    assert (luminance(looks["paper"]) > 0.5) == (scheme == "light")
    for colour, _ in [*looks["lines"], *looks["bars"]]:
        assert contrast(colour, looks["paper"]) >= 3
    for patterns in ([dash for _, dash in looks["lines"]], looks["marks"], [hatch for _, hatch in looks["bars"]]):
        assert len(set(patterns)) == 4


def test_the_charts_take_the_width_of_the_window(open_page: Any) -> None:
    page = open_page(width=1400)
    wide = page.locator("#higher svg[role=img]").bounding_box()["width"]
    page.set_viewport_size({"width": 390, "height": 800})
    sync_api.expect(page.locator("#higher svg[role=img]")).not_to_have_attribute("width", str(wide))
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


# ---- by keyboard


def test_everything_is_reached_by_tab_named_and_visibly_in_focus(open_page: Any) -> None:
    page = open_page()
    reached = []
    for _ in range(150):
        page.keyboard.press("Tab")
        now = page.evaluate(
            """() => {
              const node = document.activeElement, style = getComputedStyle(node);
              const label = node.labels?.[0]?.textContent || node.getAttribute("aria-label") || node.textContent;
              return {tag: node.tagName, label, ring: style.outlineStyle, width: parseFloat(style.outlineWidth)};
            }"""
        )
        if now["tag"] == "BODY":
            break
        assert now["label"]
        assert (now["ring"], now["width"]) == ("solid", 3)
        reached.append(now)
    assert len(reached) == page.locator("a:visible, button, input, select").count()
    assert reached[0]["label"] == "Skip to the first experiment"


def test_a_slider_moves_by_arrow_keys_and_a_number_by_typing(open_page: Any) -> None:
    page = open_page()
    before = number(page, "mismatch.mis.expected")
    field(page, "mismatch", "cap").focus()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "cap, slider"
    for _ in range(20):
        page.keyboard.press("ArrowLeft")
    cap = field(page, "mismatch", "cap").input_value()
    assert 1 < float(cap) < 2
    assert page.evaluate("document.activeElement.getAttribute('aria-valuetext')") == cap
    assert number(page, "mismatch.mis.expected") != before
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Control+A")
    page.keyboard.type("19.9")
    assert number(page, "mismatch.mis.expected") < 1e-9
    assert 300 < int(field(page, "mismatch", "cap, slider").input_value()) < 400


def test_a_link_to_an_experiment_takes_the_focus_there_and_leaves_the_state(open_page: Any) -> None:
    page = open_page()
    page.get_by_role("link", name="Sampler and trainer").focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "mismatch-title"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "mismatch.cap"
    assert "ratio.answers=16" in page.url


def test_the_sliders_of_the_answers_write_into_the_lists(open_page: Any) -> None:
    page = open_page()
    page.get_by_label("reward of answer 2").focus()
    page.keyboard.press("ArrowRight")
    page.get_by_label("length of answer 3").focus()
    page.keyboard.press("Home")
    assert field(page, "weights", "rewards").input_value() == "1, 0.05, 0, 1"
    assert field(page, "weights", "lengths").input_value() == "200, 50, 1, 400"
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "length of answer 3"


def test_each_chart_is_described_in_words(open_page: Any) -> None:
    page = open_page()
    labels = page.locator("svg[role=img]").evaluate_all(
        "charts => charts.map(chart => chart.getAttribute('aria-label'))"
    )
    assert len(labels) == 15
    assert all(len(label) > 40 for label in labels)
    assert len(set(labels)) == 15


# ---- the link and the reset


def test_a_link_holds_the_state_and_gives_it_back(open_page: Any) -> None:
    page = open_page()
    field(page, "weights", "rewards").fill("0.5, -2, 1")
    field(page, "weights", "lengths").fill("3 4 5000")
    field(page, "weights", "max_length").fill("5001")
    field(page, "weights", "advantage divided by").select_option("none")
    field(page, "clip", "dual_clip").fill("none")
    field(page, "kl", "noise").fill("1e-1")
    expected = values(page)
    page.wait_for_url("**#*kl.noise=0.1*")
    state = page.url.partition("#")[2]
    assert page.locator("#link").get_attribute("href") == f"#{state}"
    assert "weights.rewards=0.5,-2,1&weights.lengths=3,4,5000&weights.adv_norm=none" in state
    assert "higher." not in state
    other = open_page(state)
    assert values(other) == expected
    assert field(other, "weights", "rewards").input_value() == "0.5, -2, 1"
    assert field(other, "clip", "dual_clip").input_value() == "none"


def test_a_link_pasted_into_the_open_page_changes_it(open_page: Any) -> None:
    page = open_page()
    page.evaluate("location.hash = 'clip.rho=2.5&ratio.answers=16&ratio.lengths=20&mismatch.batches=4'")
    sync_api.expect(field(page, "clip", "ratio rho")).to_have_value("2.5")
    assert number(page, "clip.cispo.good.gradient") == 2.5
    assert field(page, "kl", "samples").input_value() == "100000"


@pytest.mark.parametrize("state", ["mismatch.cap=0", "mismatch.cap=abc", "mismatch.cap="])
def test_a_wrong_value_in_a_link_gets_its_message_and_the_picture_of_the_start(state: str, open_page: Any) -> None:
    page = open_page(f"{state}&ratio.answers=16&ratio.lengths=20")
    assert number(page, "mismatch.none.noise") > 0
    sync_api.expect(field(page, "mismatch", "cap")).to_have_attribute("aria-invalid", "true")


def test_names_that_the_page_does_not_know_in_a_link_change_nothing(open_page: Any) -> None:
    start = open_page()
    page = open_page(f"{start.url.partition('#')[2]}&clip.nothing=1&nowhere.cap=3&%ff=1&constructor.x=1")
    assert values(page) == values(start)


def test_a_reset_gives_back_the_start_of_one_panel_or_of_all(open_page: Any) -> None:
    page = open_page()
    field(page, "higher", "updates").fill("3")
    field(page, "clip", "clip").fill("0.9")
    page.locator("#higher").get_by_role("button", name="Reset this panel").click()
    assert field(page, "higher", "updates").input_value() == "30"
    assert field(page, "clip", "clip").input_value() == "0.9"
    field(page, "weights", "lengths").fill("0")
    page.get_by_role("button", name="Reset everything").click()
    settle(page)
    assert field(page, "clip", "clip").input_value() == "0.2"
    assert field(page, "weights", "lengths").input_value() == "200, 50, 2000, 400"
    assert field(page, "ratio", "answers").input_value() == "512"
    assert page.locator("[aria-invalid]").count() == 0
    page.wait_for_url(lambda url: "#" not in url)


# ---- what cannot be


@pytest.mark.parametrize(
    ("panel", "label", "typed", "said"),
    [
        ("weights", "rewards", "1", "rewards must be at least two numbers. Got '1' instead. A group of one has no"),
        ("weights", "rewards", "", "rewards must be at least two numbers. Got '' instead."),
        ("weights", "rewards", "1, NaN, 0, 1", "rewards must be numbers, each a finite number. Got 'NaN' instead."),
        ("weights", "rewards", "1,,0,1", "rewards must be numbers, each a finite number. Got '' instead."),
        ("weights", "lengths", "0, 0, 0, 0", "lengths must be numbers, each from 1 to 100,000. Got '0' instead."),
        ("weights", "lengths", "1.5, 2, 3, 4", "lengths must be numbers, each a whole number. Got '1.5' instead."),
        ("weights", "lengths", "200, 50", "lengths must be as many as there are rewards (4). Got 2 instead."),
        ("weights", "max_length", "1999", "max_length must be at least the longest answer (2000 tokens). Got 1999"),
        ("kl", "noise", "-0.1", "noise must be from 0 to 10. Got '-0.1' instead."),
        ("kl", "ratio r = p/q", "0", "ratio r = p/q must be from 0.01 to 100. Got '0' instead."),
        ("kl", "seed", "1.5", "seed must be a whole number. Got '1.5' instead."),
        ("clip", "dual_clip", "1", "dual_clip must be above 1 and at most 1,000, or none. Got '1' instead."),
        ("clip", "ratio rho", "11", "rho must be at most 1 / 0.1, as a probability ends at 1. Got 11 instead."),
        ("higher", "rare token's probability", "0", "rare token's probability must be above 0 and at most 1."),
        (
            "ratio",
            "lengths",
            "100000, 100000, 100000",
            "lengths must be at most 250,000 tokens in all with 16 answers.",
        ),
        ("mismatch", "cap", "0", "cap must be above 0 and at most 1,000,000,000. Got '0' instead."),
        ("mismatch", "cap", "nan", "cap must be a finite number. Got 'nan' instead."),
        ("mismatch", "cap", "Infinity", "cap must be a finite number. Got 'Infinity' instead."),
        ("mismatch", "cap", "1e400", "cap must be a finite number. Got '1e400' instead."),
        ("mismatch", "outliers", "2.5", "outliers must be a whole number. Got '2.5' instead."),
    ],
)
def test_bad_input_gets_a_message_beside_its_field_and_the_last_good_picture_stays(
    panel: str, label: str, typed: str, said: str, lab_page: Any
) -> None:
    section = lab_page.locator(f"#{panel}")
    if panel == "ratio":
        field(lab_page, panel, "answers").fill("16")
    settle(lab_page)
    before, picture = values(lab_page), section.locator(".figure").inner_html()
    entry = field(lab_page, panel, label)
    good = entry.input_value()
    entry.fill(typed)
    settle(lab_page)
    message = lab_page.locator(f"[id='{entry.get_attribute('aria-describedby').split()[0]}']")
    assert message.inner_text().startswith(said)
    assert entry.get_attribute("aria-invalid") == "true"
    assert message.bounding_box()["y"] - entry.bounding_box()["y"] < 160
    assert (values(lab_page), section.locator(".figure").inner_html()) == (before, picture)
    assert section.locator(".last").is_visible()
    entry.fill(good)
    assert entry.get_attribute("aria-invalid") is None
    assert not message.is_visible()
    assert not section.locator(".last").is_visible()


def test_more_rewards_than_lengths_are_told_beside_the_lengths(lab_page: Any) -> None:
    field(lab_page, "weights", "rewards").fill("1, 0, 0, 1, 1")
    message = lab_page.locator("[id='weights.lengths-error']")
    assert message.inner_text() == "lengths must be as many as there are rewards (5). Got 4 instead."
    field(lab_page, "weights", "lengths").fill("200, 50, 2000, 400, 10")
    assert not message.is_visible()
    assert number(lab_page, "weights.4.advantage") > 0
    lab_page.locator("#weights").get_by_role("button", name="Reset this panel").click()


def test_a_group_without_spread_is_drawn_and_explained(lab_page: Any) -> None:
    field(lab_page, "weights", "rewards").fill("1, 1, 1, 1")
    assert number(lab_page, "weights.2.token.token-mean") == 0
    assert "every advantage is 0" in lab_page.locator("#weights .says").inner_text()
    lab_page.locator("#weights").get_by_role("button", name="Reset this panel").click()
