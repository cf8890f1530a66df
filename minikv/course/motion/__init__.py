"""Motion that teaches: drawings as plain ES modules, fed with states recorded from what minikv really does."""

from minikv.course.motion.paging import PagingMotion
from minikv.course.motion.paging_states import PagingRecorder, record_generate
from minikv.course.motion.scene import scene_module, scene_page, scene_style

__all__ = ["PagingMotion", "PagingRecorder", "record_generate", "scene_module", "scene_page", "scene_style"]
