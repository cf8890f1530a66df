"""The diagram of a launch: other numbers of the launch draw other programs, tiles and blocks."""

import pytest

from minikv.course.diagrams import decode_grid
from minikv.course.lessons.l10.launch import launch_of, paged, prepare
from minikv.errors import ArgumentError
from tests.course.diagrams.test_diagrams import launch, said


def test_there_is_a_program_for_each_sequence_and_kv_head():
    words = said(decode_grid(launch(), (1, 0)))
    assert {f"{seq}, {head}" for seq in range(2) for head in range(3)} <= set(words)
    assert "Grid (2, 3): 6 programs" in words


@pytest.mark.parametrize(("tile", "masked"), [(4, [0, 0, 3]), (8, [0, 7]), (16, [7])])
def test_tiles_cover_the_length_and_the_last_is_masked(tile, masked):
    lines = [line for line in decode_grid(launch(tile=tile), (0, 1)).text().splitlines() if "masked" in line]
    assert [int(line.rsplit(" ", 1)[1]) for line in lines] == masked


def test_a_tile_names_the_blocks_of_the_table_that_it_reads():
    text = decode_grid(launch(), (0, 1)).text()
    assert "positions 0 to 7, in blocks 5, 0;" in text
    assert "positions 8 to 8, in blocks 4;" in text
    assert "block 5" in said(decode_grid(launch(), (0, 1)))


def test_every_line_of_the_text_is_in_the_picture():
    diagram = decode_grid(launch(), (0, 1))
    assert set(diagram.text().splitlines()) <= set(said(diagram))


def test_a_recorded_launch_is_that_of_nanos_kernel():
    prepare()
    case = paged([5, 16, 37], kv_heads=2, group=4, dim=16, block_size=8)
    made = launch_of(case)
    assert made.grid == (3, 2)
    assert (made.rows, made.tile, made.num_blocks) == (16, 32, 10)
    assert [len(table) for table in made.tables] == [1, 2, 5]
    from minikv.nano import attention

    assert attention.paged_decode_kernel.__class__.__name__ != "_Recorder"


def test_a_program_outside_the_grid_is_refused():
    with pytest.raises(ArgumentError):
        decode_grid(launch(), (2, 0))
