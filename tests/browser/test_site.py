"""The site in Chromium: its calculator with the Python that it serves, its search, its plots, on a phone's width.

A small site is built: a lesson with a plot, the home page and the calculator. Pyodide is fetched once, with npm.
"""

import json
import threading
from http.server import ThreadingHTTPServer
from urllib.parse import parse_qs, unquote

import pytest

from minikv import CacheSpec, plan_memory
from minikv.course.widgets import PoolWidget, WalkWidget
from minikv.i18n import LANGUAGES
from minikv.plan.catalog import find_model
from tests.browser.accessibility import violations
from tests.longer import usual_if
from tests.plan.gguf.files import TENSORS, write
from tools.project import ROOT
from tools.site.__main__ import handler_of
from tools.site.build import Site
from tools.site.pages import Plan
from tools.site.pyodide import fetched
from tools.site.widgets import FOLDER, recorded_name
from tools.site.words import words

pytestmark = [pytest.mark.browser, pytest.mark.slow]

STEM = "01_why_a_cache"  # has a plot, formulas and code
# Have widgets that work on the page.
RECORDED, POOL, LIVE = "08_allocate_kv_cache", "09_pages_and_blocks", "10_kernels"
WIDE = {"width": 1400, "height": 1000}
PHONE = {"width": 390, "height": 844}
LOADED_MS = 120_000
_HIDE_SCROLLED = """() => [...document.querySelectorAll(".formula")]
  .filter((one) => one.scrollWidth > one.clientWidth).forEach((one) => { one.hidden = true; })"""
_SIDEWAYS = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def python():
    """Pyodide's folder; without npm or what it reaches, these tests step aside."""
    found = fetched(ROOT / "build" / "pyodide")
    if found is None:
        pytest.skip("npm cannot fetch Pyodide here")
    return found


@pytest.fixture(scope="module")
def origin(python, tmp_path_factory):
    """The address of a server for the small site."""
    folder = tmp_path_factory.mktemp("site")
    assert Site(Plan(ROOT, only=frozenset({STEM, RECORDED, POOL, LIVE})), folder, python).write() == []
    with ThreadingHTTPServer(("127.0.0.1", 0), handler_of(folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def until(page, true: str) -> None:
    """Ask again until the expression ``true`` is; playwright's own waiting needs an eval, which the pages forbid."""
    for _ in range(LOADED_MS // 50):
        if page.evaluate(true):
            return
        page.wait_for_timeout(50)
    raise AssertionError(true)


def open_calculator(watched, origin: str, lang: str, behind: str = "") -> None:
    watched.page.goto(f"{origin}/{lang}/calculator.html{behind}")
    if not behind:
        watched.page.keyboard.press("Tab")
        watched.page.locator("#calculator .start").focus()
        watched.page.keyboard.press("Enter")
    watched.page.wait_for_selector("#calculator[data-ready]", timeout=LOADED_MS)


@pytest.mark.parametrize("lang", usual_if(lambda lang: lang == "zh", LANGUAGES))
def test_the_calculator_answers_by_keyboard_on_a_phone(lang, origin, watched_page, screenshot):
    watched = watched_page(origin, viewport=PHONE)
    page = watched.page
    open_calculator(watched, origin, lang)
    page.select_option("select[name=model]", label="DeepSeek-V3")
    page.select_option("select[name=tp]", label="8")
    box = page.locator("input[name=context-exact]")
    box.focus()
    box.press("Control+A")
    page.keyboard.type("32768")
    needed = f"{CacheSpec.from_config('DeepSeek-V3', tp=8).bytes_for(32_768):,}"
    assert needed == "2,302,672,896"
    until(page, f"document.querySelector('.widget [role=status]').textContent.includes('{needed}')")
    budget = plan_memory("DeepSeek-V3", gpu="H200", tp=8, context=32_768)
    assert page.locator("dd[data-key=tokens]").inner_text() == f"{budget.max_tokens:,}"
    texts = page.locator(".explained").all_text_contents()
    assert texts == [budget.spec.explain(lang), budget.spec.explain("zh" if lang == "en" else "en")]
    assert page.evaluate(_SIDEWAYS) == 0
    page.set_viewport_size(WIDE)  # axe judges a cell that is scrolled out of sight by what lies there
    assert violations(page, "main") == []
    page.set_viewport_size(PHONE)
    # The slider too, and what the link then holds.
    slider = page.locator("input[name=batch]")
    slider.focus()
    slider.press("ArrowRight")
    until(page, "location.hash.includes('batch=2')")
    held = parse_qs(page.evaluate("location.hash.slice(1)"))
    assert (held["model"], held["tp"], held["context"]) == (["DeepSeek-V3"], ["8"], ["32768"])
    assert page.locator("#calculator .link").input_value() == page.url
    screenshot(page, f"calculator_{lang}")
    watched.assert_clean()


@pytest.mark.long
def test_a_link_opens_what_its_writer_saw_also_a_pasted_config(origin, watched_page):
    config = find_model("Qwen3-0.6B").config
    first = watched_page(origin, viewport=PHONE)
    open_calculator(first, origin, "en")
    first.page.fill("#calculator textarea", json.dumps(config))
    first.page.click("#calculator .add")
    until(first.page, "location.hash.includes('config=')")
    hash_ = first.page.evaluate("location.hash")
    second = watched_page(origin, viewport=PHONE)
    open_calculator(second, origin, "zh", hash_)
    tokens = f"{plan_memory(config, gpu='H200').max_tokens:,}"
    assert second.page.locator("dd[data-key=tokens]").inner_text() == tokens
    second.page.fill("#calculator textarea", "{")
    second.page.click("#calculator .add")
    second.page.wait_for_selector("#calculator .refused:not(:empty)")
    first.assert_clean()
    second.assert_clean()


@pytest.mark.long
def test_a_gguf_file_is_read_by_its_header_and_offers_llama_cpp_s_types(origin, watched_page, tmp_path):
    watched = watched_page(origin)
    page = watched.page
    open_calculator(watched, origin, "en", "#context=512")  # the file's model has few positions
    page.set_input_files("#calculator input[type=file]", write(tmp_path / "small.gguf", tensors=TENSORS))
    until(page, "document.querySelector('.command').textContent.startsWith('llama-server')")
    page.select_option("select[name=kv_dtype]", label="q8_0")
    until(page, "document.querySelector('.command').textContent.includes('-ctk q8_0')")
    assert page.locator("select[name=tp]").count() == 0
    assert page.locator(".copied").inner_text() == words("en")["calculator_no_link"]
    page.select_option("select[name=model]", label="Llama-3.1-8B")
    page.wait_for_selector("select[name=tp]")
    watched.assert_clean()


@pytest.mark.parametrize("lang", usual_if(lambda lang: lang == "zh", LANGUAGES))
def test_the_model_answers_and_an_eviction_changes_the_answer(lang, origin, watched_page, screenshot):
    watched = watched_page(origin, viewport=PHONE)
    page = watched.page
    page.goto(f"{origin}/{lang}/model.html")
    assert "paris ? ben oslo" in page.locator("#model .example").inner_text(), (
        "a recorded run stands there before"
    )
    page.locator("#model .start").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("#model[data-ready]", timeout=LOADED_MS)
    verdict, now = page.locator("#model .verdict"), page.locator("#model .now")
    assert "paris ? ada paris" in verdict.inner_text()
    assert "“paris”" in now.inner_text()
    assert page.locator(".pages .new").all_inner_texts() == ["ada", "ada"]
    page.select_option("#policy", value="streaming")
    assert words(lang)["model_verdict"].partition("{written}")[0].rpartition("}")[2] in verdict.inner_text()
    assert "paris ? ada paris" in verdict.inner_text(), "the answer with everything kept"
    assert page.locator(".pages section").first.locator(".held, .new").count() == 8
    before = now.inner_text()
    page.locator("#model [name=step]").focus()
    page.keyboard.press("ArrowRight")
    assert now.inner_text() != before
    page.click("#model [name=back]")
    assert now.inner_text() == before
    assert page.evaluate(_SIDEWAYS) == 0
    page.set_viewport_size(WIDE)
    assert violations(page, "main") == []
    screenshot(page, f"site_model_{lang}")
    watched.assert_clean()


@pytest.mark.parametrize("lang", usual_if(lambda lang: lang == "zh", LANGUAGES))
def test_the_playground_runs_the_reader_s_own_requests_by_keyboard_on_a_phone(
    lang, origin, watched_page, screenshot
):
    watched = watched_page(origin, viewport=PHONE)
    page = watched.page
    page.goto(f"{origin}/{lang}/playground.html")
    # The example moves without Python, and the table follows it.
    slider, rows = page.locator(".drawing [name=step]"), page.locator(".progress tbody tr")
    assert rows.count() == 4
    assert "decode" in rows.evaluate_all("rows => rows.map((row) => row.dataset.state)")
    slider.focus()
    slider.press("Home")
    assert set(rows.evaluate_all("rows => rows.map((row) => row.dataset.state)")) == {"later"}
    slider.press("ArrowRight")
    assert rows.first.get_attribute("data-state") == "prefill"
    pool = page.locator(".drawing svg [data-block]").last.bounding_box()
    assert pool["x"] >= 0, "drawn for a phone: tables above, blocks below"
    assert pool["x"] + pool["width"] <= PHONE["width"]
    assert page.evaluate(_SIDEWAYS) == 0
    # One more request, typed, which the engine then has to serve.
    page.locator("#playground [name=add]").focus()
    page.keyboard.press("Enter")
    page.keyboard.type("the cat sat")
    page.locator("#playground [name=num_blocks]").fill("10")
    page.keyboard.press("Enter")
    page.wait_for_selector("#playground[data-ready]", timeout=LOADED_MS)
    assert rows.count() == 5
    assert "num_blocks=10" in page.url
    assert page.locator(".drawing svg [data-block]").count() == 10
    assert page.evaluate(_SIDEWAYS) == 0
    slider.focus()
    slider.press("End")
    ended = rows.evaluate_all("rows => rows.map((row) => row.dataset.state)")
    assert ended == ["ended"] * 5
    assert page.locator(".said-steps li").count() == int(slider.get_attribute("max")) + 1
    page.set_viewport_size(WIDE)
    assert violations(page, "main") == []
    screenshot(page, f"site_playground_{lang}")
    # A link opens the same run; what cannot run is said.
    again = watched_page(origin, viewport=PHONE)
    again.page.goto(page.url.replace("num_blocks=10", "num_blocks=1"))
    again.page.wait_for_selector("#playground .refused:not(:empty)", timeout=LOADED_MS)
    assert again.page.locator("[name=prompt]").last.input_value() == "the cat sat"
    watched.assert_clean()
    again.assert_clean()


@pytest.mark.parametrize("lang", usual_if(lambda lang: lang == "en", LANGUAGES))
def test_a_lesson_s_widgets_work_on_its_page(lang, origin, watched_page, screenshot):
    watched = watched_page(origin, viewport=PHONE)
    page, seen = watched.page, []
    page.on("request", lambda request: seen.append(request.url))
    # The recorded one has its states in the page.
    page.goto(f"{origin}/{lang}/lessons/{RECORDED}.html")
    page.locator("figure.widget button.start").first.focus()
    page.keyboard.press("Enter")
    said = page.locator("figure.widget .minikv-motion [role=status]")
    said.wait_for()
    before = said.inner_text()
    page.locator("figure.widget [name=step]").focus()
    page.keyboard.press("End")
    assert said.inner_text() != before
    assert page.evaluate(_SIDEWAYS) == 0
    assert not any("pyodide" in url for url in seen)
    # So has that of a monitor, in a file of its own.
    monitor = page.locator("figure.widget").last
    monitor.locator("button.start").focus()
    page.keyboard.press("Enter")
    page.locator("figure.widget .minikv-engine").wait_for()
    said = monitor.locator(".minikv-engine [role=status]")
    name = recorded_name("08", "live_pool", lang)
    frames = json.loads((FOLDER / name).read_text(encoding="utf-8"))["frames"]
    assert int(monitor.locator("[name=moment]").get_attribute("max")) == len(frames) - 1
    before = said.inner_text()
    monitor.locator("[name=moment]").focus()
    page.keyboard.press("Home")
    until(
        page, f"document.querySelector('.minikv-engine [role=status]').textContent !== {json.dumps(before)}"
    )
    assert monitor.locator("button:visible").count() == 0, "nothing runs here"
    assert page.evaluate(_SIDEWAYS) == 0
    assert not any("pyodide" in url for url in seen)
    # The live one asks Python, which its first change loads.
    page.goto(f"{origin}/{lang}/lessons/{LIVE}.html")
    page.locator("figure.widget button.start").click()
    page.select_option("figure.widget select[name=block_size]", label="16")
    view = WalkWidget(lang, length=52, block_size=16, splits=1, step=2).view
    said = json.dumps(view["status"])
    until(page, f"document.querySelector('figure.widget .minikv-widget').textContent.includes({said})")
    until(page, "document.querySelector('figure.widget > .state').textContent === ''")
    assert any("pyodide" in url for url in seen)
    assert page.evaluate(_SIDEWAYS) == 0
    page.set_viewport_size(WIDE)
    assert violations(page, "figure.widget") == []
    screenshot(page, f"site_widgets_{lang}")
    watched.assert_clean()


def test_nothing_of_python_is_loaded_before_it_is_asked_for(origin, watched_page):
    watched = watched_page(origin)
    seen: list[str] = []
    watched.page.on("request", lambda request: seen.append(request.url))
    for name in ("calculator", "playground"):
        watched.page.goto(f"{origin}/en/{name}.html", wait_until="networkidle")
    assert seen
    assert [
        url for url in seen if "pyodide" in url or url.endswith((".zip", "search.en.js", "plotly.js"))
    ] == []
    assert violations(watched.page, "body") == []
    watched.assert_clean()


@pytest.mark.parametrize("theme", usual_if(lambda theme: theme == "dark", ["light", "dark"]))
def test_a_lesson_can_be_read_on_a_phone_in_each_theme(theme, origin, watched_page, screenshot):
    watched = watched_page(origin, viewport=PHONE, color_scheme=theme)
    page = watched.page
    page.goto(f"{origin}/zh/lessons/{STEM}.html")
    assert page.evaluate("document.documentElement.dataset.theme") == theme
    assert page.evaluate(_SIDEWAYS) == 0
    assert page.locator("math").count() > 10
    # A plot is a picture until it is touched.
    assert page.locator(".js-plotly-plot").count() == 0
    page.locator("figure.plot img").first.click()
    page.wait_for_selector(".js-plotly-plot .main-svg", timeout=LOADED_MS)
    assert page.evaluate(_SIDEWAYS) == 0
    # Where nothing is scrolled out of sight, every colour can be judged; some formulas are wider than any column.
    page.set_viewport_size(WIDE)
    page.evaluate(_HIDE_SCROLLED)
    assert violations(page, "body") == []
    page.click("#theme")
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") != theme
    screenshot(page, f"site_lesson_{theme}")
    watched.assert_clean()


@pytest.mark.parametrize(
    ("lang", "asked"),
    [
        ("en", "attention cache"),
        ("en", "num_kvcache_blocks"),
        ("zh", "缓存"),
        ("zh", "没有缓存的注意力"),
        ("zh", "缓存块数量"),
    ],
)
def test_search_is_opened_by_a_key_and_leads_to_the_place(lang, asked, origin, watched_page):
    watched = watched_page(origin)
    page = watched.page
    page.goto(f"{origin}/{lang}/index.html")
    page.keyboard.press("/")
    until(page, "Array.isArray(window.minikvIndex)")
    page.keyboard.type(asked)
    link = page.locator("#search li a").first
    link.wait_for()
    address = link.get_attribute("href")
    page.keyboard.press("Enter")
    page.wait_for_url(lambda url: unquote(url).endswith(address.removeprefix("..")))
    assert not page.locator("#search").is_visible()
    watched.assert_clean()


@pytest.mark.parametrize("lang", usual_if(lambda lang: lang == "en", LANGUAGES))
def test_the_pool_answers_its_buttons_on_its_page(lang, origin, watched_page):
    watched = watched_page(origin, viewport=PHONE)
    page = watched.page
    page.goto(f"{origin}/{lang}/lessons/{POOL}.html")
    figure = page.locator("figure.widget").last
    figure.locator("button.start").click()
    figure.locator("button[name=new]").click()
    pool = PoolWidget(lang, num_blocks=24, block_size=4)
    for press in (("new",), ("new",), ("share", "B"), ("step",), ("new",), ("free", "D"), ("new",)):
        pool.act(*press)
    said = json.dumps(pool.frames[-1]["status"])
    until(page, f"document.querySelector('.minikv-blocks [role=status]')?.textContent === {said}")
    assert page.evaluate(_SIDEWAYS) == 0
    watched.assert_clean()


def test_the_front_door_leads_to_the_reader_s_language_and_each_page_to_its_sibling(origin, watched_page):
    watched = watched_page(origin, locale="zh-CN")
    page = watched.page
    page.goto(f"{origin}/index.html")
    page.wait_for_url(f"{origin}/zh/index.html")
    # The drawing moves: a call of the block manager is a step.
    said = page.locator("figure.motion [role=status]")
    before = said.inner_text()
    page.click("figure.motion button[name=forward]")
    assert said.inner_text() != before
    page.click(".switch")
    page.wait_for_url(f"{origin}/en/index.html")
    page.goto(f"{origin}/index.html")  # the language of the last page
    page.wait_for_url(f"{origin}/en/index.html")
    watched.assert_clean()
