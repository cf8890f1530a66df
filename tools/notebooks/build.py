"""Make the notebooks: run what is stale, keep what is not, and say how long each took.

``build/notebooks.json`` (not committed) remembers for each notebook what its outputs were made from. A
change of prose alone therefore rewrites the notebook without running it; a change of the package runs
everything again, and writes only where an output changed.
"""

import json
import re
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from tools.notebooks.compose import compose, to_text
from tools.notebooks.course import Course, Target
from tools.notebooks.execute import execute_all
from tools.notebooks.photos import find_chromium, insert_pictures, known_pictures, take_photos, wanted_photos
from tools.notebooks.source import MEASURED_TAGS, SourceError
from tools.notebooks.stamps import outputs_stamp, package_stamp, run_key

MEMORY = Path("build/notebooks.json")


@dataclass
class Report:
    """What one build did. ``seconds`` has an entry for each notebook that ran."""

    seconds: dict[Path, float] = field(default_factory=dict)
    written: list[Path] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Job:
    """One notebook: composed without outputs, and as it stands on disk (None where it does not)."""

    target: Target
    composed: NotebookNode
    old: NotebookNode | None
    key: str


def build(course: Course, targets: list[Target], *, force: bool = False, jobs: int = 2, say=print) -> Report:
    """Bring ``targets`` up to date. A notebook whose cell raises is left as it was and is a problem."""
    report = Report()
    memory = _remembered(course)
    package = package_stamp(course.root)
    work = _jobs(course, targets, package, report)
    chromium = find_chromium()
    to_run = []
    for job in work:
        if job.old is None or force or not _is_fresh(job, memory, chromium):
            to_run.append(job)
        else:
            _finish(course, job, _with_old_outputs(job.composed, job.old), memory, report)

    with tempfile.TemporaryDirectory(prefix="minikv-photos-") as pages:

        def done(index: int, run) -> None:
            say(f"{run.seconds:6.1f} s  {to_run[index].target.path}{'  FAILED' if run.problem else ''}")

        runs = execute_all([job.composed for job in to_run], course.root, Path(pages), jobs, done)
        retake = force and chromium
        pictures = {} if retake else known_pictures(job.old for job in work if job.old)
        wanted = {sha for run in runs for sha, _ in wanted_photos(run.notebook)}
        untaken = wanted - set(pictures)
        if chromium and untaken:
            pictures |= take_photos(untaken, Path(pages), chromium)

    for job, run in zip(to_run, runs, strict=True):
        report.seconds[job.target.path] = run.seconds
        if run.problem:
            report.problems.append(f"{job.target.path} [{run.problem}")
            continue
        for sha in insert_pictures(run.notebook, pictures):
            why = "its page has no #photo, its script raised, or this machine has no Chinese font"
            way_out = why if chromium else "no Chromium here (set CHROMIUM)"
            say(f"{job.target.path}: no picture for widget {sha}: {way_out}")
        if job.old and not force:
            _keep_measurements(run.notebook, job.old)
        _finish(course, job, run.notebook, memory, report)
    mine = {job.target.path.as_posix() for job in work}
    _remember(course, {path: entry for path, entry in memory.items() if path in mine})
    return report


def _remembered(course: Course) -> dict[str, dict[str, str]]:
    path = course.root / MEMORY
    return json.loads(path.read_text()) if path.is_file() else {}


def _remember(course: Course, entries: dict[str, dict[str, str]]) -> None:
    """Add ``entries`` to what the file says now: another build may have ended in the meantime."""
    path = course.root / MEMORY
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(_remembered(course) | entries, indent=1, sort_keys=True) + "\n")


def _jobs(course: Course, targets: list[Target], package: str, report: Report) -> list[Job]:
    jobs = []
    for target in targets:
        try:
            composed = compose(course, target, course.read(target))
        except SourceError as error:
            if str(error) not in report.problems:
                report.problems.append(str(error))
            continue
        jobs.append(
            Job(target, composed, read_notebook(course.root / target.path), run_key(code(composed), package))
        )
    return jobs


def _is_fresh(job: Job, memory: dict, chromium: str | None) -> bool:
    """True where the outputs on disk are the ones that this code and this package gave last time."""
    if job.old is None:
        return False
    remembered = {"run": job.key, "outputs": outputs_stamp(code(job.old))}
    without_picture = any("image/png" not in output["data"] for _, output in wanted_photos(job.old))
    return memory.get(job.target.path.as_posix()) == remembered and not (chromium and without_picture)


def _with_old_outputs(composed: NotebookNode, old: NotebookNode) -> NotebookNode:
    ran = {cell.id: cell for cell in code(old)}
    for cell in code(composed):
        cell.outputs, cell.execution_count = ran[cell.id].outputs, ran[cell.id].execution_count
    return composed


def _keep_measurements(new: NotebookNode, old: NotebookNode) -> None:
    """In place: where the measured cells and what they say are the old ones but for numbers, keep the old numbers.

    They are as true, and were perhaps measured on a machine that was less busy. They are kept or replaced together, so
    that one notebook never shows the numbers of two runs.
    """

    def measured(notebook: NotebookNode) -> dict[str, NotebookNode]:
        return {cell.id: cell for cell in code(notebook) if _is_measured(cell)}

    was, now = measured(old), measured(new)
    if [(_said(cell), cell.id) for cell in was.values()] == [(_said(cell), cell.id) for cell in now.values()]:
        for key, cell in now.items():
            cell.outputs = was[key].outputs


def _said(cell: NotebookNode) -> tuple[str, list[tuple[str, str]]]:
    """The code of a cell and its outputs as text, without digits and what aligns them."""
    outputs = [
        (each.output_type, each.get("text", each.get("data", {}).get("text/plain", "")))
        for each in cell.outputs
    ]
    return cell.source, [(kind, re.sub(r"[\d.,\s]+", " ", text)) for kind, text in outputs]


def _is_measured(cell: NotebookNode) -> bool:
    return any(tag in MEASURED_TAGS for tag in cell.metadata.get("tags", ()))


def _finish(course: Course, job: Job, notebook: NotebookNode, memory: dict, report: Report) -> None:
    nbformat.validate(notebook)
    path = course.root / job.target.path
    text = to_text(notebook)
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        report.written.append(job.target.path)
    stamp = outputs_stamp(code(nbformat.reads(text, as_version=4)))
    memory[job.target.path.as_posix()] = {"run": job.key, "outputs": stamp}


def code(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def read_notebook(path: Path) -> NotebookNode | None:
    """The notebook at ``path``; None where there is none or it is not JSON (it is then made anew)."""
    try:
        return nbformat.read(path, as_version=4)
    except (FileNotFoundError, nbformat.reader.NotJSONError):
        return None
