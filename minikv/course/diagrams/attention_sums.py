"""A head's attention as a triangle of numbers, its rows summed and, below, its columns: the score of each token."""

from collections.abc import Sequence

from minikv.course.diagrams.svg import WIDTH, Diagram, Picture
from minikv.i18n import pick_language, text
from minikv.look import look
from minikv.shown import columns

LEFT, TOP = 120, 64
HIGH, WIDEST = 44, 104  # of a cell
BAR = 30  # height of a probability of 1


def attention_sums(probs: Sequence[Sequence[float]], lang: str = "en") -> Diagram:
    """Draw ``probs`` [queries][tokens]: a filled part of a cell is as high as its share of the query's attention."""
    lang = pick_language(lang)
    tokens = len(probs[0])
    wide = min(WIDEST, (WIDTH - LEFT) / (tokens + 1))
    sums = [sum(row[token] for row in probs) for token in range(tokens)]
    picture = Picture()
    title = text("diagrams_eviction.sums_title", lang, queries=len(probs), tokens=tokens)
    picture.words(0, 16, title, bold=True)
    heads = [text("diagrams_eviction.sums_token", lang, number=number) for number in range(tokens)]
    heads.append(text("diagrams_eviction.sums_row", lang))
    for place, said in enumerate(heads):
        picture.words(LEFT + place * wide + wide / 2, TOP - 12, said, anchor="middle", size=12)
    table = [["", *heads]]
    for number, row in enumerate(probs):
        y = TOP + number * HIGH
        name = text("diagrams_eviction.sums_query", lang, number=number)
        picture.words(0, y + 27, name, size=12)
        for token, share in enumerate(row):
            x = LEFT + token * wide
            picture.box(x, y, wide - 6, HIGH - 6, edge=1, dashed=not share)
            if share:
                picture.box(x, y + HIGH - 6 - BAR * share, 20, BAR * share, look("k"))
                picture.words(x + 28, y + 25, f"{share:.2f}", size=12)
        picture.words(LEFT + tokens * wide + wide / 2, y + 25, f"{sum(row):.2f}", anchor="middle", size=12)
        table.append([name, *(f"{share:.2f}" if share else "" for share in row), f"{sum(row):.2f}"])
    y = TOP + len(probs) * HIGH
    score = text("diagrams_eviction.sums_score", lang)
    picture.words(0, y + 24, score, bold=True)
    for token, total in enumerate([*sums, sum(sums)]):
        x = LEFT + token * wide
        picture.words(x + (wide - 6) / 2, y + 24, f"{total:.2f}", anchor="middle", bold=True)
    table.append([score, *(f"{total:.2f}" for total in [*sums, sum(sums)])])
    alt = text("diagrams.joint", lang).join(" ".join(filter(None, line)) for line in table)
    lines = [title, columns(table, range(1, tokens + 2))]
    return Diagram(
        picture, title + text("diagrams.colon", lang) + alt, lines, lang, width=WIDTH, height=y + 36
    )
