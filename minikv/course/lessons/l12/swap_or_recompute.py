"""Exercise 12.4: swap or recompute, decided from rates and recorded as an event."""

from functools import partial

from minikv.course.exercise import Exercise, Misconception


def preempt(
    tokens: int, num_bytes: int, host_room: int, to_host: float, to_device: float, prefill: float
) -> dict[str, object]:
    return _preempt(tokens, num_bytes, host_room, to_host, to_device, prefill)


def _preempt(
    tokens,
    num_bytes,
    host_room,
    to_host,
    to_device,
    prefill,
    *,
    there_only=False,
    back_only=False,
    rates_added=False,
    at_once=False,
    ask_room=True,
    equal_swaps=False,
    dearer=False,
    tokens_moved=False,
):
    """Decide and return the event. Each keyword argument, changed, gives one wrong answer."""
    moved = tokens if tokens_moved else num_bytes
    there, back = moved / to_host, moved / to_device
    swap, recompute = there + back, tokens / prefill
    if there_only:
        swap = there
    elif back_only:
        swap = back
    elif at_once:
        swap = max(there, back)
    elif rates_added:
        swap = moved / (to_host + to_device)
    cheaper = swap > recompute if dearer else swap <= recompute if equal_swaps else swap < recompute
    fits = num_bytes <= host_room or not ask_room
    how = "swap" if cheaper and fits else "recompute"
    return {"how": how, "swap_seconds": swap, "recompute_seconds": recompute}


def event_of_the_way_taken(tokens, num_bytes, host_room, to_host, to_device, prefill):
    """Leaves out the estimate of the other way, so the decision cannot be checked afterwards."""
    event = preempt(tokens, num_bytes, host_room, to_host, to_device, prefill)
    return {"how": event["how"], f"{event['how']}_seconds": event[f"{event['how']}_seconds"]}


def word_without_event(tokens, num_bytes, host_room, to_host, to_device, prefill):
    return preempt(tokens, num_bytes, host_room, to_host, to_device, prefill)["how"]


def draw_victims(rng) -> list[dict]:
    """Draw swaps far cheaper, far dearer, cheaper one way only, and equal; host pools with and without room."""
    cases = []
    for i in range(48):
        tokens = 16 * rng.randint(2, 40 + 4 * i)
        num_bytes = tokens * 2 ** rng.randint(12, 17)
        to_host, to_device = 2.0 ** rng.randint(30, 36), 2.0 ** rng.randint(30, 36)
        there, back = num_bytes / to_host, num_bytes / to_device
        # The time of recomputing as a share of the swap's: 1 is a tie; between max and sum, one direction alone
        # misleads.
        share = (0.25, 0.75 + 0.2 * rng.random(), 1.0, 1.1, 4.0, 1.5)[i % 6]
        seconds = (there + back) * share
        if i % 6 == 1:
            seconds = (max(there, back) + there + back) / 2
        room = num_bytes + rng.choice([0, 1, num_bytes])
        if i % 6 == 5:
            room = num_bytes - rng.choice([1, num_bytes // 2])
        case = {"tokens": tokens, "num_bytes": num_bytes, "host_room": room}
        cases.append({**case, "to_host": to_host, "to_device": to_device, "prefill": tokens / seconds})
    return cases


PREEMPT = Exercise(
    id="12.4",
    minutes=6,
    name="preempt",
    signature=("tokens", "num_bytes", "host_room", "to_host", "to_device", "prefill"),
    cases=draw_victims,
    reference=preempt,
    misconceptions=(
        Misconception("there_only", partial(_preempt, there_only=True)),
        Misconception("back_only", partial(_preempt, back_only=True)),
        Misconception("at_once", partial(_preempt, at_once=True), within=("there_only",)),
        Misconception("rates_added", partial(_preempt, rates_added=True)),
        Misconception("room_not_asked", partial(_preempt, ask_room=False)),
        Misconception("equal_swaps", partial(_preempt, equal_swaps=True)),
        Misconception("dearer", partial(_preempt, dearer=True)),
        Misconception("tokens_moved", partial(_preempt, tokens_moved=True)),
        Misconception("half_an_event", event_of_the_way_taken),
        Misconception("no_event", word_without_event),
    ),
)
