"""Exercise 05.4: the bytes that are alive after each step, when tensors are made, viewed, copied and deleted."""

from minikv.course.exercise import Exercise, Misconception


def live_bytes(steps: list[tuple]) -> list[int]:
    storage_of: dict[str, int] = {}  # name: number of its storage
    own: dict[str, int] = {}  # name: bytes of the tensor itself
    sizes: list[int] = []  # bytes of each storage
    alive = []
    for what, name, *rest in steps:
        if what == "new":
            sizes.append(rest[0])
            storage_of[name], own[name] = len(sizes) - 1, rest[0]
        elif what == "view":
            storage_of[name], own[name] = storage_of[rest[0]], rest[1]
        elif what == "clone":
            sizes.append(own[rest[0]])
            storage_of[name], own[name] = len(sizes) - 1, sizes[-1]
        else:
            del storage_of[name], own[name]
        alive.append(sum(sizes[storage] for storage in set(storage_of.values())))
    return alive


def live_owner_frees(steps: list[tuple]) -> list[int]:
    """Applies the rule of C++: a storage lives as long as the name that it was made under."""
    made: dict[str, int] = {}
    own: dict[str, int] = {}
    alive = []
    for what, name, *rest in steps:
        size = own[rest[0]] if what == "clone" else rest[-1] if rest else 0
        made.pop(name, None)
        own.pop(name, None)
        if what != "del":
            own[name] = size
        if what in ("new", "clone"):
            made[name] = size
        alive.append(sum(made.values()))
    return alive


def live_views_cost(steps: list[tuple]) -> list[int]:
    """Counts a view as if it were a copy."""
    return live_bytes([("new", step[1], step[3]) if step[0] == "view" else step for step in steps])


def live_clone_of_all(steps: list[tuple]) -> list[int]:
    """Lets a clone copy the whole storage of its source."""
    widths: dict[str, int] = {}
    whole = []
    for step in steps:
        what, name, *rest = step
        if what == "del":
            del widths[name]
        else:
            widths[name] = rest[0] if what == "new" else widths[rest[0]]
        whole.append(("new", name, widths[name]) if what == "clone" else step)
    return live_bytes(whole)


def live_names_leak(steps: list[tuple]) -> list[int]:
    """Keeps the old tensor alive when its name is given to another tensor."""
    renamed: list[tuple] = []
    current: dict[str, str] = {}
    for i, (what, name, *rest) in enumerate(steps):
        if what in ("view", "clone"):
            rest[0] = current[rest[0]]
        if what != "del":
            current[name] = f"{name}{i}"
        renamed.append((what, current[name], *rest))
    return live_bytes(renamed)


def live_nothing_freed(steps: list[tuple]) -> list[int]:
    """Ignores ``del``."""
    alive: list[int] = []
    own: dict[str, int] = {}
    for what, name, *rest in steps:
        if what != "del":
            own[name] = own[rest[0]] if what == "clone" else rest[-1]
        added = own[name] if what in ("new", "clone") else 0
        alive.append((alive[-1] if alive else 0) + added)
    return alive


def live_drops_first(steps: list[tuple]) -> list[int]:
    """Drops the name before it looks up the source: ``a = a[:10]`` finds no a."""
    names: set[str] = set()
    for what, name, *rest in steps:
        names.discard(name)
        if what in ("view", "clone") and rest[0] not in names:
            raise KeyError(rest[0])
        if what != "del":
            names.add(name)
    return live_bytes(steps)


def draw_steps(rng) -> list[dict]:
    cases = []
    for i in range(50):
        steps: list[tuple] = []
        bytes_of: dict[str, int] = {}
        for j in range(3 + i // 3):
            kinds = ["new", "view", "view", "clone", "del"] if bytes_of else ["new"]
            what = ["new", "view", "del"][j] if i % 5 == 0 and j < 3 else rng.choice(kinds)
            source = rng.choice(sorted(bytes_of)) if bytes_of else ""
            name = source if rng.random() < 0.2 and source else rng.choice("abcdef"[: 2 + i // 8])
            if i % 5 == 0 and j < 3:  # The main case: "b" is a view of "a", and then "a" is deleted.
                name, source = ["a", "b", "a"][j], "a"
            if what == "new":
                steps.append((what, name, 4 * rng.randint(20, 100)))
                bytes_of[name] = steps[-1][2]
            elif what == "view":
                steps.append((what, name, source, 4 * rng.randint(1, bytes_of[source] // 8 + 1)))
                bytes_of[name] = steps[-1][3]
            elif what == "clone":
                steps.append((what, name, source))
                bytes_of[name] = bytes_of[source]
            else:
                steps.append((what, source))
                del bytes_of[source]
        cases.append({"steps": steps})
    return cases


LIVE = Exercise(
    id="05.4",
    minutes=8,
    name="live_bytes",
    signature=("steps",),
    cases=draw_steps,
    reference=live_bytes,
    shrink=lambda case: [{"steps": case["steps"][:-1]}] if len(case["steps"]) > 1 else [],
    misconceptions=(
        Misconception("owner_frees", live_owner_frees),
        Misconception("views_cost", live_views_cost),
        Misconception("clone_of_all", live_clone_of_all),
        Misconception("names_leak", live_names_leak),
        Misconception("nothing_freed", live_nothing_freed),
        Misconception("drops_first", live_drops_first),
    ),
)
