"""Lesson 17: how many GPUs a traffic needs. Exercises: ``lru_hits, ttft, router, fewest_replicas``."""

from minikv.course.exercise import Lesson, Prediction
from minikv.course.lessons.l17.fewest_replicas import FEWEST
from minikv.course.lessons.l17.lru_hits import LRU
from minikv.course.lessons.l17.router import ROUTER
from minikv.course.lessons.l17.traffic import md1_wait
from minikv.course.lessons.l17.ttft import TTFT
from minikv.plan import CacheSpec
from minikv.simulate import Trace, TraceRequest, hit_rates
from minikv.units import GIB

HASH_BLOCK = 16  # tokens; the lengths of the session below are multiples of it


def _session_share(system: int, turns: int, message: int, answer: int) -> float:
    """Return the percentage of a session's prompt tokens that a cache without limit has already."""
    requests, prompt = [], system
    for turn in range(turns):
        prompt += message
        requests.append(TraceRequest(float(turn), prompt, answer, tuple(range(prompt // HASH_BLOCK))))
        prompt += answer
    [rate] = hit_rates(Trace("a session", tuple(requests), HASH_BLOCK), [None])
    return 100 * rate


def _host_tokens(host: int) -> int | float:
    return CacheSpec.from_config("Llama-3.1-70B").max_tokens(host * GIB)


LESSON = Lesson(
    exercises=(LRU, TTFT, ROUTER, FEWEST),
    predictions=(
        Prediction(
            "session_share",
            lambda rng: {
                "system": 512 * rng.randint(1, 8),
                "turns": rng.randint(4, 9),
                "message": HASH_BLOCK * rng.randint(4, 20),
                "answer": HASH_BLOCK * rng.randint(8, 24),
            },
            how="100 * (1 - ({system} + {turns} * {message} + ({turns} - 1) * {answer})"
            " / ({turns} * {system} + {turns} * ({turns} + 1) / 2 * {message}"
            " + {turns} * ({turns} - 1) / 2 * {answer}))",
            unit="percent",
            answer=_session_share,
            tolerance=1.1,
        ),
        Prediction(
            "mean_wait",
            lambda rng: {"service": 50 * rng.randint(4, 16), "busy": rng.choice([60, 75, 80, 90])},
            how="{busy} / (2 * (100 - {busy})) * {service}",
            unit="ms",
            answer=lambda service, busy: md1_wait(busy / 100, service),
            tolerance=1.1,
        ),
        Prediction(
            "in_system",
            lambda rng: {"rate": rng.randint(3, 12), "time": rng.randint(4, 30)},
            how="{rate} * {time}",
            unit="sequences",
            answer=lambda rate, time: rate * time,
        ),
        Prediction(
            "host_tokens",
            lambda rng: {"host": 64 * rng.randint(1, 8)},
            how="{host} * 2**30 // (2 * 80 * 8 * 128 * 2)",
            unit="tokens",
            answer=_host_tokens,
        ),
    ),
    questions=("why_one_pass", "why_the_bend", "why_a_bound", "why_all_requests", "what_to_believe"),
)
