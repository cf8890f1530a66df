"""Motion that teaches: drawings as plain ES modules, fed with states recorded from what minikv really does."""

from minikv.course.motion.batching import BatchingMotion
from minikv.course.motion.memory_bar import MemoryBarMotion
from minikv.course.motion.paging import PagingMotion
from minikv.course.motion.paging_states import PagingRecorder, record_generate
from minikv.course.motion.scene import scene_module, scene_page, scene_style

__all__ = [
    "BatchingMotion",
    "MemoryBarMotion",
    "PagingMotion",
    "PagingRecorder",
    "record_generate",
    "scene_module",
    "scene_page",
    "scene_style",
]
