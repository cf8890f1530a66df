"""Exercise 18.1: what a plan's bytes hold: blocks beside eviction's records, and sequences at full length."""

from functools import partial

from minikv.course.exercise import Exercise, Misconception

POSITION_BYTES, FIELD_BYTES = 8, 4  # of ``minikv.eviction.paged.records``: int64 and float32


def room(kv_bytes: int, seats: int, token: dict, block_size: int, longest: int, keeps: dict | None) -> tuple:
    return _room(kv_bytes, seats, token, block_size, longest, keeps)


def _token_bytes(token: dict) -> int:
    return 2 * token["layers"] * token["kv_heads"] * (token["head_dim"] * token["itemsize"] + token["scale"])


def _record_bytes(seats: int, token: dict, keeps: dict) -> int:
    each = POSITION_BYTES + FIELD_BYTES * keeps["fields"]
    return token["layers"] * token["kv_heads"] * seats * keeps["places"] * each


def _held(longest: int, keeps: dict | None) -> int:
    return longest if keeps is None else min(longest, keeps["places"])


def _at_once(blocks: int, held: int, block_size: int) -> int:
    return blocks // -(-held // block_size)


def _room(
    kv_bytes,
    seats,
    token,
    block_size,
    longest,
    keeps,
    *,
    token_bytes=_token_bytes,
    record_bytes=_record_bytes,
    held=_held,
    at_once=_at_once,
    seated=True,
):
    """Apply the rule. Each keyword argument, changed, gives one wrong answer."""
    left = kv_bytes - (0 if keeps is None else record_bytes(seats, token, keeps))
    blocks = max(0, left) // (token_bytes(token) * block_size)
    most = at_once(blocks, held(longest, keeps), block_size)
    return blocks, min(seats, most) if seated else most


def _elements(token: dict) -> int:
    return token["layers"] * token["kv_heads"] * token["head_dim"] * token["itemsize"]


def _scales(token: dict) -> int:
    return token["layers"] * token["kv_heads"] * token["scale"]


def _each_layer(seats, token, keeps):
    return _record_bytes(seats, token, keeps) // token["kv_heads"]


def _one_seat(seats, token, keeps):
    return _record_bytes(1, token, keeps)


def _fields_only(seats, token, keeps):
    return _record_bytes(seats, token, keeps) - _positions(seats, token, keeps)


def _short_positions(seats, token, keeps):
    return _record_bytes(seats, token, keeps) - _positions(seats, token, keeps) // 2


def _positions(seats, token, keeps):
    return _record_bytes(seats, token, keeps | {"fields": 0})


# itemsize and the bytes of a scale: fp32, bf16, plain fp8, and int8 with a scale for each token and head.
_STORED = ((4, 0), (2, 0), (1, 0), (1, 4))


def draw_plans(rng) -> list[dict]:
    """Draw every dtype with eviction and without; budgets that end on a block, a byte before, or anywhere."""
    cases = []
    for i in range(56):
        itemsize, scale = _STORED[i % 4]
        token = {
            "layers": rng.randint(2, 4),
            "kv_heads": rng.choice([2, 4]),
            "head_dim": rng.choice([16, 32]),
        }
        token |= {"itemsize": itemsize, "scale": scale}
        size, seats = rng.choice([8, 16]), rng.randint(3, 12)
        keeps = None if i % 3 == 0 else {"places": rng.randint(3, 9) * size + rng.randrange(size)}
        if keeps is not None:
            keeps["fields"] = rng.choice([0, 1, 1, 2])
        longest = size * rng.randint(4, 20) + rng.choice([0, 1, size - 1])
        if keeps is not None and i % 7 == 0:
            longest = keeps["places"] - size
        block = _token_bytes(token) * size
        wanted = -(-_held(longest, keeps) // size)
        blocks = wanted * (seats + 3 if i % 5 == 0 else rng.randint(2, seats))
        blocks += rng.choice([0, -1, 1, wanted - 1]) * (i % 7 > 0)
        records = 0 if keeps is None else _record_bytes(seats, token, keeps)
        kv_bytes = records + block * blocks + (0, -1, rng.randrange(block))[i % 3]
        case = {"kv_bytes": kv_bytes, "seats": seats, "token": token, "block_size": size}
        cases.append(case | {"longest": longest, "keeps": keeps})
    return cases


ROOM = Exercise(
    id="18.1",
    minutes=7,
    name="room",
    signature=("kv_bytes", "seats", "token", "block_size", "longest", "keeps"),
    cases=draw_plans,
    reference=room,
    misconceptions=(
        Misconception("no_records", partial(_room, record_bytes=lambda seats, token, keeps: 0)),
        Misconception("one_seat", partial(_room, record_bytes=_one_seat)),
        Misconception("each_layer", partial(_room, record_bytes=_each_layer)),
        Misconception("fields_only", partial(_room, record_bytes=_fields_only)),
        Misconception("short_positions", partial(_room, record_bytes=_short_positions)),
        Misconception("no_scales", partial(_room, token_bytes=lambda token: 2 * _elements(token))),
        Misconception(
            "one_scale", partial(_room, token_bytes=lambda token: 2 * _elements(token) + _scales(token))
        ),
        Misconception(
            "by_tokens",
            partial(_room, at_once=lambda blocks, held, size: blocks * size // held if held else 0),
        ),
        Misconception("nothing_forgotten", partial(_room, held=lambda longest, keeps: longest)),
        Misconception(
            "always_full",
            partial(_room, held=lambda longest, keeps: longest if keeps is None else keeps["places"]),
        ),
        Misconception("no_seats", partial(_room, seated=False)),
    ),
)
