"""Feynman questions: say it in your own words, then compare with a model answer and its points."""

from minikv.course.lessons import find_lesson
from minikv.course.say import say
from minikv.errors import UnknownNameError
from minikv.i18n import Sentence, text


def explain(key: str, reveal: bool = False, *, lesson: str, lang: str = "en") -> None:
    """Print the question ``key`` of ``lesson``; with ``reveal`` also the model answer and the rubric.

    Raises ``UnknownNameError`` for a key that the lesson does not have.
    """
    questions = find_lesson(lesson).questions
    if key not in questions:
        raise UnknownNameError("unknown_question", name=key, known=", ".join(questions))
    own = f"lesson_{lesson.lower()}.{key}"
    say(text(f"{own}.question", lang), lang)
    if not reveal:
        say(text("course.explain_how", lang, name=key), lang)
        return
    say(text("course.explain_answer", lang, answer=Sentence(text(f"{own}.answer", lang).strip())), lang)
    say(text("course.explain_rubric", lang), lang)
    for point in text(f"{own}.rubric", lang).strip().splitlines():
        say(f"  [ ] {point.strip()}", lang, rest="    ")
