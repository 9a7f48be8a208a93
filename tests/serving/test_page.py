"""The page in a real browser: what a person types, points at and chooses, and what they then see."""

import re
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("uvicorn", reason="needs the server's packages: pip install qknorm[serve]")

from qknorm.serving import Limits, create_app
from support.browser import chromium, running

pytestmark = pytest.mark.slow

TEXT = "gato casa ela"


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def context(browser):
    """A window for many tests: new ones take time. The key is forgotten with each page."""
    return browser.new_context()


@pytest.fixture(scope="module")
def named(models):
    """The two runs, and one that says it is of right-to-left languages and has a name like a tag."""
    about = models[0].about.model_copy(update={"name": "<b>rtl</b>", "source": "he", "target": "ar"})
    return [*models, replace(models[0], about=about)]


@pytest.fixture(scope="module")
def address(browser, named):
    with running(create_app(named)) as found:
        yield found


@pytest.fixture
def visit(browser, context, address):
    """Open the page; at the end of the test nothing may have been complained of on the console."""
    complaints = []
    pages = []

    def open_page(url=address, **options):
        page = browser.new_page(**options) if options else context.new_page()
        pages.append(page)
        page.set_default_timeout(15_000)
        page.complaints = complaints
        page.on("console", lambda message: complaints.append(message.text) if message.type != "log" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(dialog.message))
        page.goto(url)
        page.wait_for_selector(".panel, #key-form:not([hidden]), .operation")
        return page

    yield open_page
    for page in pages:
        page.close()
    assert complaints == []


def alone(page, text=TEXT):
    """Only the first run, and this text translated."""
    page.select_option("#run-2", "")
    page.fill("#source", text)
    page.wait_for_selector(".panel .nbest")
    return page.locator(".panel").first


def weights_shown(panel):
    """What each source word is coloured with."""
    read = "words => words.map(word => Number(word.style.getPropertyValue('--weight')))"
    return np.array(panel.locator(".source .word").evaluate_all(read))


def attention(page, address, model="qknorm", text=TEXT):
    body = {"text": text, "model": model, "nbest": 2, "attention": True}
    (sentence,) = page.request.post(f"{address}/translate", data=body).json()["sentences"]
    return [np.array(each["attention"]["weights"]) for each in sentence["translations"]]


def test_typing_is_translated_at_the_pause(visit, models):
    page = visit()
    page.select_option("#run-2", "")
    asked = []
    page.on("request", lambda request: asked.append(request) if "/translate" in request.url else None)
    page.get_by_label("Text").press_sequentially(TEXT, delay=15)
    page.wait_for_selector(".nbest")
    found = next(models[0].translator.stream([TEXT], nbest=2))
    assert page.locator(".target .word").all_inner_texts() == [*found[0].text.split(), "⏎"]
    assert page.locator(".nbest .text").all_inner_texts() == [each.text for each in found]
    shown = [float(text.replace("−", "-")) for text in page.locator(".nbest .score").all_inner_texts()]
    assert shown == pytest.approx([each.score for each in found], abs=6e-4)
    assert page.get_by_role("status").inner_text() == "Translated."
    assert len(asked) < 4  # not one for each of the 13 keys
    assert asked[-1].post_data_json["beam"] is None, "the run's own"
    page.get_by_label("Translations shown").select_option("3")
    page.wait_for_selector(".nbest li:nth-child(3)")
    assert asked[-1].post_data_json["beam"] == asked[-1].post_data_json["nbest"] == 3
    page.get_by_label("Text").fill("")
    page.wait_for_selector(".nbest", state="detached")


def test_each_line_is_a_sentence(visit, models):
    panel = alone(visit(), "gato\n\ncasa ela")
    expected = models[0].translator(["gato", "casa ela"])
    lines = [line.inner_text().removesuffix("⏎").strip() for line in panel.locator(".target").all()]
    assert lines == expected


def test_pointing_at_a_word_shows_where_it_looks(visit, address):
    page = visit()
    panel = alone(page)
    mean = attention(page, address)[0].mean((0, 1))
    assert not weights_shown(panel).any()
    for number in (1, 0):
        panel.locator(".target .word").nth(number).hover()
        assert np.abs(weights_shown(panel) - mean[number]).max() < 2e-4
        most = panel.locator(".source .word").nth(int(mean[number].argmax())).inner_text()
        told = panel.locator(".looks").inner_text()
        assert f"{'the end' if most == '⏎' else '“' + most + '”'} {round(mean[number].max() * 100)}%" in told
    page.mouse.move(0, 0)
    assert not weights_shown(panel).any()


def test_layer_and_head_can_be_chosen(visit, address):
    page = visit()
    panel = alone(page)
    weights = attention(page, address)[0]
    panel.locator(".target .word").nth(1).click()
    page.mouse.move(0, 0)
    assert np.abs(weights_shown(panel) - weights.mean((0, 1))[1]).max() < 2e-4
    panel.get_by_label("Layer").select_option("2")
    assert np.abs(weights_shown(panel) - weights[1].mean(0)[1]).max() < 2e-4
    panel.get_by_label("Head").select_option("1")
    assert np.abs(weights_shown(panel) - weights[1, 0, 1]).max() < 2e-4
    panel.get_by_label("Layer").select_option("mean")
    assert np.abs(weights_shown(panel) - weights.mean(0)[0, 1]).max() < 2e-4


def test_another_of_the_best_can_be_chosen(visit, address):
    page = visit()
    panel = alone(page)
    second = panel.locator(".nbest label").nth(1)
    second.click()
    text = second.locator(".text").inner_text()
    assert panel.locator(".target").inner_text().removesuffix("⏎").strip() == text
    panel.locator(".target .word").first.hover()
    assert np.abs(weights_shown(panel) - attention(page, address)[1].mean((0, 1))[0]).max() < 2e-4
    page.get_by_label("Translations shown").select_option("1")
    page.wait_for_selector(".nbest li:only-child")


def test_two_runs_stand_side_by_side(visit, models):
    page = visit(viewport={"width": 1100, "height": 800})
    page.fill("#source", TEXT)
    page.locator(".nbest").nth(1).wait_for()
    left, right = page.locator(".panel").all()
    assert (left.locator("h2").inner_text(), right.locator("h2").inner_text()) == ("qknorm", "baseline")
    for panel, served in ((left, models[0]), (right, models[1])):
        assert panel.locator(".nbest .text").first.inner_text() == served.translator([TEXT])[0]
    boxes = left.bounding_box(), right.bounding_box()
    assert boxes[0]["y"] == boxes[1]["y"] and boxes[0]["x"] + boxes[0]["width"] < boxes[1]["x"]
    left.locator(".target .word").first.hover()
    assert weights_shown(left).any() and not weights_shown(right).any()
    page.select_option("#run-1", label="baseline")
    page.select_option("#run-2", "")
    page.wait_for_selector(".nbest")
    assert page.locator(".panel h2").all_inner_texts() == ["baseline"]


def test_a_screen_reader_and_a_keyboard_are_enough(visit):
    page = visit()
    panel = alone(page)
    tree = page.locator("main").aria_snapshot()
    for wanted in ('textbox "Text"', 'combobox "Run"', 'combobox "Layer"', 'combobox "Head"'):
        assert wanted in tree
    assert 'region "qknorm"' in tree
    assert 'button "end of the sentence"' in tree
    assert re.search(r'radio "\w.* −\d', tree)
    assert panel.locator(".looks").get_attribute("aria-live") == "polite"
    assert page.locator("#problem").get_attribute("role") == "alert"
    words = panel.locator(".target .word")
    panel.get_by_label("Head").focus()
    page.keyboard.press("Tab")
    assert words.first.evaluate("e => e === document.activeElement")
    assert weights_shown(panel).any()
    page.keyboard.press("ArrowRight")
    assert words.nth(1).evaluate("e => e === document.activeElement")
    page.keyboard.press("Enter")
    assert words.nth(1).get_attribute("aria-pressed") == "true"
    page.keyboard.press("End")
    assert words.last.evaluate("e => e === document.activeElement")
    page.keyboard.press("Tab")  # one stop for all words, then the list of translations
    assert panel.locator(".nbest input").first.evaluate("e => e === document.activeElement")
    assert words.nth(1).evaluate("e => e.classList.contains('lit')")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Escape")
    assert panel.locator("[aria-pressed=true]").count() == 0


def test_right_to_left_text_runs_from_the_right(visit):
    page = visit()
    page.select_option("#run-1", label="<b>rtl</b>")
    panel = alone(page)
    for part in (".target", ".source", ".nbest ol"):
        assert panel.locator(part).evaluate("e => getComputedStyle(e).direction") == "rtl"
    assert page.locator("#source").evaluate("e => getComputedStyle(e).direction") == "rtl"
    words = panel.locator(".source .word")
    assert words.nth(0).inner_text() == "gato"
    words = panel.locator(".target .word")
    words.first.focus()
    page.keyboard.press("ArrowLeft")
    assert words.nth(1).evaluate("e => e === document.activeElement")


def test_text_is_never_taken_for_html(visit):
    page = visit()
    page.select_option("#run-1", label="<b>rtl</b>")
    tag = "<img src=x onerror=alert(1)><b>casa</b> &amp;"
    panel = alone(page, tag)
    assert panel.locator("h2").inner_text() == "<b>rtl</b>"
    assert panel.locator(".source").text_content().removesuffix("⏎").strip() == tag
    panel.locator(".target .word").first.hover()
    assert page.locator("main img, main b").count() == 0


def test_it_fits_a_phone(visit):
    page = visit(viewport={"width": 320, "height": 700}, has_touch=True, is_mobile=True)
    page.fill("#source", f"{TEXT} {'casa' * 30}")
    page.locator(".nbest").nth(1).wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") == 320
    panel = page.locator(".panel").first
    panel.locator(".target .word").first.tap()
    assert weights_shown(panel).any()
    assert page.locator("#source").evaluate("e => parseFloat(getComputedStyle(e).fontSize)") >= 16


def test_text_can_be_read_on_every_ground(visit):
    """At least 4.5 : 1 (WCAG AA), also on the strongest heat."""
    page = visit()
    colours = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        colours.append(palette(page))
        for over, under in (
            ("text", "card"),
            ("text", "heat"),
            ("text", "lit"),
            ("quiet", "card"),
            ("quiet", "ground"),
            ("fault", "fault-ground"),
            ("accent", "ground"),
        ):
            assert contrast(colours[-1][over], colours[-1][under]) >= 4.5, (scheme, over, under)
    assert colours[0]["ground"] != colours[1]["ground"]


def palette(page):
    names = ("text", "quiet", "card", "heat", "lit", "fault", "fault-ground", "ground", "accent")
    read = "n => getComputedStyle(document.documentElement).getPropertyValue('--' + n).trim()"
    return {name: page.evaluate(read, name) for name in names}


def contrast(one, other):
    def luminance(colour):
        parts = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    dark, bright = sorted([luminance(one), luminance(other)])
    return (bright + 0.05) / (dark + 0.05)


def test_errors_are_said_and_pass(visit):
    page = visit()
    alone(page)
    page.fill("#source", "a" * 2001)
    page.wait_for_selector("#problem:not([hidden])")
    assert page.get_by_role("alert").inner_text().startswith("Sentence 1 has 2001 characters")
    assert page.locator(".panel.stale").count() == 1  # what it still shows is of the text before
    page.fill("#source", TEXT)
    page.wait_for_selector("#problem", state="hidden")
    assert page.locator(".panel.stale").count() == 0

    times = []

    def busy(route):
        times.append(1)
        if len(times) > 1:
            route.continue_()
        else:
            route.fulfill(status=503, headers={"Retry-After": "1"}, json={"error": "Too much is waiting."})

    page.route("**/translate", busy)
    page.fill("#source", "casa")
    page.wait_for_selector("#problem:not([hidden])")
    assert page.get_by_role("alert").inner_text() == "Too much is waiting."
    page.wait_for_selector("#problem", state="hidden")  # it asked again by itself
    page.unroute("**/translate")

    page.route("**/translate", lambda route: route.abort())
    page.fill("#source", "ela")
    page.wait_for_selector("#problem:not([hidden])")
    assert "cannot be reached" in page.get_by_role("alert").inner_text()
    page.unroute("**/translate")
    page.fill("#source", "home")
    page.wait_for_selector("#problem", state="hidden")
    assert all(each.startswith("Failed to load resource") for each in page.complaints)  # the browser's own
    page.complaints.clear()


def test_an_answer_that_comes_too_late_is_not_shown(visit, models):
    page = visit()
    alone(page)
    held = []

    def hold(route):
        if "dente" in route.request.post_data:
            held.append(route)
        else:
            route.continue_()

    page.route("**/translate", hold)
    page.fill("#source", "dente")
    page.wait_for_selector("#status:text-is('Translating…')")
    page.fill("#source", "home ano")
    page.wait_for_selector("#status:text-is('Translated.')")
    assert len(held) == 1
    assert page.locator(".nbest .text").first.inner_text() == models[0].translator(["home ano"])[0]
    page.unroute_all(behavior="ignoreErrors")


def test_the_key_is_asked_for_and_weights_left_out_are_told(visit, named):
    with running(create_app(named, Limits(weights=1), api_key="secret")) as address:
        page = visit(address)
        assert "API key" in page.get_by_role("alert").inner_text()
        page.get_by_label("This server asks for an API key").fill("wrong")
        page.keyboard.press("Enter")
        page.get_by_label("This server asks for an API key").fill("secret")
        page.keyboard.press("Enter")
        page.wait_for_selector(".panel")
        assert page.locator("#key-form").is_hidden() and page.locator("#problem").is_hidden()
        panel = alone(page)
        assert panel.locator(".looks").inner_text() == "The weights of this translation are not shown."
        assert "first 0 of 2 translations" in panel.inner_text()
        page.reload()
        page.wait_for_selector(".panel")
        assert all(each.startswith("Failed to load resource") for each in page.complaints)
        page.complaints.clear()
        page.close()  # before its server is


def test_the_api_is_described(visit, address):
    page = visit(f"{address}/docs")
    titles = page.locator(".operation h2").all_inner_texts()
    assert titles == ["POST /translate", "GET /models", "GET /health", "GET /metrics"]
    assert "nbest" in page.locator(".operation").first.inner_text()
