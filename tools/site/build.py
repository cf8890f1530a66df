"""From the repository to a folder of pages."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from minikv.i18n import LANGUAGES
from minikv.look import PLOT_STYLE
from tools.notebooks.texts import TEXTS
from tools.project import read_project
from tools.site import api, calculator, model, motion, playground, pyodide, widgets
from tools.site.frame import Text, filled, framed
from tools.site.links import Links, between, problems
from tools.site.markdown import Prose
from tools.site.notebook import NotebookPage, Pictures
from tools.site.pages import Page, Plan
from tools.site.search import asked, index_script, sections
from tools.site.words import words

ASSETS = Path(__file__).with_name("assets")


@dataclass
class Site:
    """A site being written to ``folder``. ``python`` is Pyodide's folder; None: the calculator stays a text."""

    plan: Plan
    folder: Path
    python: Path | None = None
    links: Links = field(init=False)

    def __post_init__(self) -> None:
        self.links = Links(self.plan, read_project(), Pictures(self.folder / "pictures"))

    def write(self) -> list[str]:
        """Write every page and what they load; return what is wrong with their links."""
        if self.folder.exists():
            shutil.rmtree(self.folder)
        shutil.copytree(ASSETS, self.folder / "assets")
        found: dict[str, list[list[str]]] = {lang: [] for lang in LANGUAGES}
        for page in self.plan.pages:
            text = self._text(page)
            path = self.folder / page.path
            path.parent.mkdir(parents=True, exist_ok=True)
            project = self.links.project
            whole = framed(self.plan, page, text, project.site if project.on_site else "")
            path.write_text(whole, encoding="utf-8")
            found[page.lang] += sections(text.title, page.path, text.lead + text.html)
        for lang, entries in found.items():
            entries += asked(self._lessons(lang), lang)
            script = self.folder / "assets" / f"search.{lang}.js"
            script.write_text(index_script(entries), encoding="utf-8")
        self._write_assets()
        return [*self.links.broken, *problems(self.folder)]

    def _lessons(self, lang: str) -> dict[str, tuple[str, str]]:
        """{number: (title, path)} of the lessons that have a page."""
        found = [entry for part in self.plan.parts(lang) for entry in part.lessons]
        return {entry.number: (f"{entry.number} · {entry.title}", entry.path) for entry in found}

    def _write_assets(self) -> None:
        from plotly.offline import get_plotlyjs

        assets = self.folder / "assets"
        (assets / "plotly.js").write_text(get_plotlyjs(), encoding="utf-8")
        with (assets / "site.css").open("a", encoding="utf-8") as style:
            style.write(PLOT_STYLE + "\n")
        calculator.write_assets(assets, self.python)
        widgets.write_assets(assets)
        motion.write_assets(assets)
        model.write_assets(assets)
        (self.folder / "index.html").write_text(filled("door.html"), encoding="utf-8")
        (self.folder / ".nojekyll").touch()

    def _text(self, page: Page) -> Text:
        makers: dict[str, Callable[[Page], Text]] = {
            "lesson": self._notebook,
            "exercise": self._notebook,
            "document": self._document,
            "api": self._api,
            "calculator": self._calculator,
            "playground": self._playground,
            "model": self._model,
            "home": self._home,
        }
        return makers[page.kind](page)

    def _notebook(self, page: Page) -> Text:
        said, project = words(page.lang), self.links.project
        lesson = next(each for each in self.plan.course.lessons if each.stem == page.key)
        prose = Prose(self.links.of(page))
        cells = json.loads((self.plan.root / page.source).read_text(encoding="utf-8"))["cells"]
        size = pyodide.megabytes(self.python)
        offers = partial(widgets.offered, lesson.number, cells, page.lang) if page.kind == "lesson" else None
        notebook = NotebookPage(prose, self.links.pictures, f"{page.up}/pictures", said, offers, size)
        html = api.linked(notebook.html(cells), partial(self._definition, page))
        folder, partner = {"lesson": ("exercises", "exercises"), "exercise": ("notebooks", "lesson")}[
            page.kind
        ]
        actions = [(said["colab"], project.colab(page.source)), (said["notebook"], project.file(page.source))]
        if there := self.plan.page_of(f"{folder}/{page.lang}/{page.key}.ipynb", page.lang):
            actions.append((said[partner], between(page.path, there.path)))
        if page.kind == "exercise":
            solution = f"solutions/{page.lang}/{page.key}.ipynb"
            actions.append((said["solutions"], project.file(solution)))
        title = TEXTS[page.lang][f"{page.kind}_title"].format(
            number=lesson.number, title=lesson.title[page.lang]
        )
        sentences = (
            [said["minutes"].format(minutes=self.plan.minutes[lesson.number])]
            if page.kind == "lesson"
            else []
        )
        lead = ("" if page.lang == "zh" else " ").join([*sentences, said["run_lesson"]])
        modules = ("widgets.js",) if '<figure class="photo widget"' in html else ()
        return Text(title, html, prose.headings, actions, lead, modules=modules)

    def _definition(self, page: Page, dotted: str) -> str | None:
        """The address of a name: its place in the reference, or its file; None: no name of ours."""
        for room in sorted(self.plan.rooms, key=len, reverse=True):
            name = dotted.removeprefix(f"{room}.")
            if dotted.startswith(f"{room}.") and name in api.keys(self.plan.root, room):
                return between(page.path, f"{page.lang}/api/{room}.html") + f"#{name}"
        parts = dotted.split(".") if self.plan.rooms else []
        modules = (Path(*parts[:end]).with_suffix(".py") for end in range(len(parts) - 1, 1, -1))
        file = next((each for each in modules if (self.plan.root / each).is_file()), None)
        return None if file is None else self.links.project.file(file.as_posix())

    def _document(self, page: Page) -> Text:
        rest = (self.plan.root / page.source).read_text(encoding="utf-8").partition("\n")[2]
        prose = Prose(self.links.of(page))
        html = prose.html(rest)
        actions = [(words(page.lang)["source_of_page"], self.links.project.file(page.source))]
        return Text(self._title(page), html, prose.headings, actions)

    def _api(self, page: Page) -> Text:
        said, root = words(page.lang), self.plan.root
        if page.key:
            names = api.public_names(root, page.key)
            body = "".join(api.name_html(name, self.links.project, said) for name in names)
            return Text(page.key, api.said_html(api.room_said(root, page.key)) + body)
        rooms = [(room, api.public_names(root, room)) for room in self.plan.rooms]
        html = filled("api.html", rooms=rooms, short=lambda name: api.said_html(name.short))
        return Text(said["api_title"], html, lead=said["api_lead"])

    def _calculator(self, page: Page) -> Text:
        said = words(page.lang)
        html = filled("calculator.html", page, **calculator.values(self.python))
        modules = ("calculator.js",) if self.python else ()
        lead = said["calculator_lead"]
        return Text(
            said["calculator_title"], html, lead=lead, styles=("widgets/budget.css",), modules=modules
        )

    def _playground(self, page: Page) -> Text:
        said = words(page.lang)
        html = filled("playground.html", page, **playground.values(self.python, page.lang, said))
        modules, styles = ("playground.js",), (f"{motion.SCENE}.css",)
        title, lead = said["playground_title"], said["playground_lead"]
        return Text(title, html, lead=lead, styles=styles, modules=modules)

    def _model(self, page: Page) -> Text:
        said = words(page.lang)
        html = filled("model.html", page, **model.values(said))
        modules, styles = ("model_page.js",), ("look.css",)
        return Text(said["model_title"], html, lead=said["model_lead"], styles=styles, modules=modules)

    def _home(self, page: Page) -> Text:
        said, project, link = words(page.lang), self.links.project, self.links.of(page)
        picture = f"docs/images/engine{'.zh' if page.lang == 'zh' else ''}.png"
        html = filled(
            "home.html",
            page,
            picture=link(project.file(picture)),
            scene=motion.paging_scene(page.lang),
            parts=self.plan.parts(page.lang),
            routes=self.plan.routes(page.lang),
            documents=[
                (self._title(each), each.path, each.written_in)
                for each in self.plan.pages
                if (each.kind, each.lang) == ("document", page.lang)
            ],
        )
        first = f"notebooks/{page.lang}/{self.plan.course.lessons[0].stem}.ipynb"
        actions = [
            (said["start_reading"], link(project.file(first))),
            (said["calculator"], "calculator.html"),
            (said["playground"], "playground.html"),
            (said["model"], "model.html"),
            (said["colab"], project.colab(first)),
            (said["repository"], project.repository),
        ]
        return Text(
            said["home_title"],
            html,
            actions=actions,
            lead=said["home_lead"],
            styles=(f"{motion.SCENE}.css",),
            modules=("motion.js",),
        )

    def _title(self, page: Page) -> str:
        """The title that a document gives itself."""
        return (
            (self.plan.root / page.source).read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        )


def whole_plan(root: Path) -> Plan:
    """The plan of every page."""
    return Plan(root, ("minikv", *(f"minikv.{room}" for room in api.ROOMS)))
