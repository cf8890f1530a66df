"""The parts of nano that are exercises: a learner's engine consists of them. No torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """A function of nano that the exercise ``task`` asks for, with nano's name and signature.

    ``module`` is its file in ``minikv/nano``. ``owner`` is the class of a method; "" for a function.
    """

    task: str
    name: str
    module: str
    owner: str = ""

    @property
    def lesson(self) -> str:
        """The lesson of its exercise: "09"."""
        return self.task.partition(".")[0]

    @property
    def qualname(self) -> str:
        """ "BlockManager.free", "sample"."""
        return f"{self.owner}.{self.name}" if self.owner else self.name


# In the order of the course.
PARTS = (
    Part("02.1", "token_bytes", "kv_cache"),
    Part("02.6", "block_bytes", "kv_cache"),
    Part("06.5", "write", "kv_cache", "KVCache"),
    Part("08.2", "num_blocks_that_fit", "kv_cache"),
    Part("09.1", "slot_mapping", "block_manager"),
    Part("09.2", "free", "block_manager", "BlockManager"),
    Part("09.3", "block_digest", "block_manager"),
    Part("09.6", "allocate", "block_manager", "BlockManager"),
    Part("09.7", "append", "block_manager", "BlockManager"),
    Part("10.5", "paged_attention", "attention"),
    Part("10.6", "paged_decode_kernel", "attention"),
    Part("11a.4", "admit", "scheduler", "Scheduler"),
    Part("11a.5", "pack", "scheduler", "Scheduler"),
    Part("11b.2", "choose_victim", "scheduler", "Scheduler"),
    Part("11c.1", "sample", "runner"),
)

PART_OF = {part.task: part for part in PARTS}
