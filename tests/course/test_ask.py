"""ask: what people search for leads to the lesson and the call; every entry is found by each of its own words."""

import pytest

from minikv.course import lesson_numbers
from minikv.course.ask import ask, entries, titled, words_of
from minikv.errors import ArgumentError
from tests.in_turn import in_turn

ENTRIES = {entry.asked["en"]: entry for entry in entries()}


@pytest.mark.parametrize(
    ("words", "lesson"),
    [
        ("num_kvcache_blocks", "08"),
        ("gpu_memory_utilization", "D"),
        ("gpu_memory_utilisation", "D"),  # misspelt
        ("reset_peak_memory_stats", "07"),
        ("DynamicCache", "06"),
        ("dynamiccache", "06"),
        ("more than calculated", "D"),
        ("显存不释放", "16"),
        ("why is my memory not released after generate()?", "16"),
        ("torch.cuda.OutOfMemoryError: CUDA out of memory", "07"),
        ("kv_lora_rank", "03"),
        ("how many gpus do I need", "17"),
        ("连续批处理", "11a"),
        ("引用计数", "09"),
    ],
)
def test_what_people_search_for_is_found_first(words, lesson):
    assert ask(words).found[0].lesson == lesson


@in_turn("question", list(ENTRIES))
def test_an_entry_is_found_by_its_question_and_by_each_of_its_words(question):
    entry = ENTRIES[question]
    for words in (*entry.asked.values(), *entry.words):
        assert entry in ask(words).found, words


def test_a_word_of_the_glossary_is_found_with_what_it_means():
    found = ask("copy-on-write").found
    assert any(entry.asked["en"].startswith("copy-on-write: ") for entry in found)


def test_questions_and_wordings_are_said_in_both_languages_and_once():
    for entry in entries():
        assert entry.asked["en"].isascii()
        assert not entry.asked["zh"].isascii()
        assert len(set(map(str.casefold, entry.words))) == len(entry.words)
    assert len(ENTRIES) == len(entries())


def test_an_answer_names_the_lesson_by_its_title_in_both_languages():
    answers = ask("DynamicCache")
    assert titled("06", "en") in answers.text() != answers.text("zh")
    assert titled("06", "zh") in answers.text("zh")
    assert {entry.lesson.lower() for entry in entries()} - set(lesson_numbers()) <= {"a", "c", "d", "e"}


def test_nothing_found_says_the_way_out():
    answers = ask("zzzz qqqq")
    assert answers.found == ()
    assert "gpu_memory_utilization" in answers.text()
    assert "附录 G" in answers.text("zh")


def test_small_words_and_a_plural_do_not_count():
    assert words_of("How many of the blocks?") == words_of("block")
    assert words_of("num_blocks") == {"num_blocks", "num", "block"}


@pytest.mark.parametrize("words", ["", "  ", "x" * 201, 7, None])
def test_what_is_no_question_is_refused(words):
    with pytest.raises(ArgumentError, match="1 to 200"):
        ask(words)
