"""The segments of an allocator model as plain lists, for examples worked by hand."""

from minikv.memory.allocator.blocks import ALLOCATED


def sizes(model):
    """[[(size, in use?), ...] of each segment], by address."""
    return [
        [(block.size, block.state == ALLOCATED) for block in segment.blocks] for segment in model.segments()
    ]
