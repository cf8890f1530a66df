"""A load, a fleet and what is read of a command's output, for the tests of ``minikv simulate``."""

import json
from functools import partial

from minikv.simulate import Fleet, Load

TRACE = Load(
    num_requests=60, rate=30.0, prompt_tokens=2000, output_tokens=15, turns=3, think_seconds=1.0, seed=4
).trace()
FLEET = ("--model", "llama-3.1-8b", "--gpu", "H200", "--block-size", "64")
MAKE = partial(Fleet.plan, "llama-3.1-8b", "H200", block_size=64)


def chinese(words):
    return any("\u4e00" <= letter <= "\u9fff" for letter in words)


def told(done):
    assert (done.code, done.err) == (0, ""), done
    return json.loads(done.out)
