"""Grid, program, tile, block table: how one launch of a paged decode is divided, and what one of its programs reads."""

from typing import TYPE_CHECKING

from minikv.course.diagrams.svg import WIDTH, Diagram, Picture
from minikv.errors import ArgumentError
from minikv.i18n import pick_language, text
from minikv.look import look

if TYPE_CHECKING:
    from minikv.course.lessons.l10.launch import Launch  # it imports torch

LEFT = 112  # of the drawing: what stands before it are the names of its rows
GRID_TOP, ROW, COLUMN = 58, 28, 64  # the grid: its top, a sequence's height, a KV head's width
PROGRAM = 400  # left edge of what is said about the program
CELL, ENTRY = 26, 28  # heights of a position and of an entry of the table
A_ROW = 12  # blocks of the memory


def decode_grid(launch: "Launch", program: tuple[int, int], lang: str = "en") -> Diagram:
    """Draw the programs of ``launch``, and what ``program`` (sequence, KV head) reads, tile by tile.

    Raises ``ArgumentError`` for a program outside the grid.
    """
    lang = pick_language(lang)
    (num_seqs, heads), (seq, head) = launch.grid, program
    if not (0 <= seq < num_seqs and 0 <= head < heads):
        raise ArgumentError("program_outside_grid", program=program, grid=launch.grid)
    picture = Picture()
    title = text("diagrams.grid_title", lang, grid=launch.grid, programs=num_seqs * heads)
    rows = [_row(launch, number, lang) for number in range(num_seqs)]
    _draw_grid(picture, launch, program, title, rows, lang)
    said = _program_lines(launch, program, lang)
    for number, line in enumerate(said):
        picture.words(PROGRAM, 16 + 24 * number, line, bold=number == 0)
    top = max(GRID_TOP + num_seqs * ROW, 16 + 24 * len(said)) + 44
    tiles = [_tile(launch, seq, start, lang) for start in range(0, launch.lengths[seq], launch.tile)]
    bottom = _draw_reads(picture, launch, program, tiles, top, lang)
    alt = text("diagrams.joint", lang).join([title, *rows, *said, *tiles])
    return Diagram(picture, alt, [title, *rows, *said, *tiles], lang, width=WIDTH, height=bottom)


def _row(launch: "Launch", seq: int, lang: str) -> str:
    length = launch.lengths[seq]
    return text("diagrams.grid_row", lang, seq=seq, tokens=length, tiles=-(-length // launch.tile))


def _program_lines(launch: "Launch", program: tuple[int, int], lang: str) -> list[str]:
    seq, head = program
    first = (seq * launch.grid[1] + head) * launch.group
    values = dict(seq=seq, head=head, first=first, last=first + launch.group - 1, group=launch.group)
    values |= dict(rows=launch.rows, tile=launch.tile, length=launch.lengths[seq])
    values["tiles"] = -(-launch.lengths[seq] // launch.tile)
    return [text(f"diagrams.grid_{name}", lang, **values) for name in ("program", "queries", "loop")]


def _tile(launch: "Launch", seq: int, start: int, lang: str) -> str:
    stop, size = min(launch.lengths[seq], start + launch.tile), launch.block_size
    blocks = launch.tables[seq][start // size : -(-stop // size)]
    return text(
        "diagrams.grid_tile",
        lang,
        number=start // launch.tile,
        first=start,
        last=stop - 1,
        blocks=", ".join(map(str, blocks)),
        masked=start + launch.tile - stop,
    )


def _draw_grid(
    picture: Picture, launch: "Launch", program: tuple[int, int], title: str, rows: list[str], lang: str
) -> None:
    num_seqs, heads = launch.grid
    wide = min(COLUMN, (PROGRAM - 240) / heads)
    picture.words(0, 16, title, bold=True)
    for head in range(heads):
        middle = (head + 0.5) * wide
        picture.words(
            middle, GRID_TOP - 8, text("diagrams.grid_head", lang, head=head), anchor="middle", size=12
        )
    for seq in range(num_seqs):
        y = GRID_TOP + seq * ROW
        for head in range(heads):
            chosen = (seq, head) == program
            fill = look("k") if chosen else None
            picture.box(head * wide + 2, y + 2, wide - 4, ROW - 4, fill, radius=4, edge=3 if chosen else 1)
            if wide >= 48:
                picture.words(
                    (head + 0.5) * wide, y + 19, f"{seq}, {head}", anchor="middle", size=12, on=fill
                )
        picture.words(heads * wide + 8, y + 19, rows[seq], size=12)


def _draw_reads(
    picture: Picture, launch: "Launch", program: tuple[int, int], tiles: list[str], top: float, lang: str
) -> float:
    """Draw positions in tiles, the entries of the table below them, and the blocks that these name."""
    seq, head = program
    size, length, table = launch.block_size, launch.lengths[seq], launch.tables[seq]
    wide = min(14.0, (WIDTH - LEFT - 12 * (len(tiles) - 1)) / (len(tiles) * launch.tile))
    strip, entries = top + 20 * len(tiles), top + 20 * len(tiles) + CELL + 44
    memory = entries + ENTRY + 64

    def left_of(position: int) -> float:
        return LEFT + position * wide + position // launch.tile * 12

    for number, said in enumerate(tiles):
        picture.words(LEFT, top + 20 * number - 12, said, size=12)
    picture.words(0, strip + 18, text("diagrams.grid_positions", lang))
    for position in range(len(tiles) * launch.tile):
        seen = position < length
        picture.box(
            left_of(position), strip, wide, CELL, look("k") if seen else None, edge=1, dashed=not seen
        )
    picture.words(0, entries + 19, text("diagrams.grid_table", lang, seq=seq))
    picture.words(0, memory + 18, text("diagrams.grid_memory", lang))
    block_wide = (WIDTH - LEFT) / min(A_ROW, launch.num_blocks)
    band = max(8.0, 28 / launch.grid[1])
    row_height = band * launch.grid[1] + 44
    for block in range(launch.num_blocks):
        row, column = divmod(block, A_ROW)
        x, y = LEFT + column * block_wide, memory + row * row_height
        for one in range(launch.grid[1]):  # a token's heads lie side by side in its slot
            own = block in table and one == head
            picture.box(x, y + one * band, block_wide - 8, band, look("k") if own else None, edge=1)
        middle = x + (block_wide - 8) / 2
        name = text("diagrams.slots_block", lang, block=block)
        picture.words(middle, y + band * launch.grid[1] + 16, name, anchor="middle", size=12)
        slots = f"{block * size}-{block * size + size - 1}"
        picture.words(middle, y + band * launch.grid[1] + 32, slots, anchor="middle", size=12)
    for entry, block in enumerate(table):
        first, last = entry * size, min(length, (entry + 1) * size) - 1
        middle = (left_of(first) + left_of(last) + wide) / 2
        picture.curve((middle, strip + CELL + 4), (middle, entries - 4), down=True)
        picture.box(middle - 18, entries, 36, ENTRY, radius=6, edge=1)
        picture.words(middle, entries + 19, str(block), anchor="middle", bold=True)
        row, column = divmod(block, A_ROW)
        to = LEFT + column * block_wide + (block_wide - 8) / 2
        picture.curve((middle, entries + ENTRY + 4), (to, memory + row * row_height - 4), down=True)
    return memory + -(-launch.num_blocks // A_ROW) * row_height + 8
