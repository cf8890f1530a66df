"""The home page's moving drawing: paging, as a real ``BlockManager`` does it, recorded when the site is built."""

import json
from pathlib import Path

from minikv.blocks import BlockManager
from minikv.course.motion.paging import PagingMotion
from minikv.course.motion.paging_states import PagingRecorder
from minikv.course.motion.scene import scene_module, scene_style

SCENE = "paging"
PROMPT = list(range(11, 21))


def paging_scene(lang: str) -> str:
    """Return form and states as JSON: a prompt, another that begins alike, a fork that copies on write, an end."""
    recorder = PagingRecorder(BlockManager(num_blocks=8, block_size=4))
    recorder.allocate("A", PROMPT)
    for token in (21, 22, 23):
        recorder.append("A", token)
    recorder.allocate("B", [*PROMPT[:8], 31, 32])
    recorder.fork("B", "C")
    recorder.append("C", 33)
    recorder.append("B", 34)
    recorder.free("A")
    recorder.allocate("D", [*PROMPT, 41])
    return json.dumps(PagingMotion(lang, recorder).scene).replace("<", "\\u003c")


def write_assets(assets: Path) -> None:
    """Write the scene's module and style."""
    (assets / f"{SCENE}.js").write_text(scene_module(SCENE), encoding="utf-8")
    (assets / f"{SCENE}.css").write_text(scene_style(SCENE), encoding="utf-8")
