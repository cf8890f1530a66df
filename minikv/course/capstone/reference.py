"""The answers that a run is compared with. Lesson 18."""

from minikv.course.capstone.task import Task
from minikv.engine.llm import LLM

AT_ONCE = 8  # sequences of a reference run
BLOCK_SIZE = 16

Answers = tuple[tuple[int, ...], ...]


def right_tokens(task: Task, answers: Answers) -> int:
    """The number of right tokens in ``answers``: of each answer those before its first wrong one."""
    right = 0
    for request, given in zip(task.requests, answers, strict=True):
        for expected, token in zip(request.answer, given, strict=False):
            if token != expected:
                break
            right += 1
    return right


def reference_answers(task: Task) -> Answers:
    """The model's answer to each request with all of its K and V kept, in the dtype of the weights."""
    longest = task.max_model_len
    blocks = AT_ONCE * -(-longest // BLOCK_SIZE)
    with LLM(task.model, num_blocks=blocks, max_num_seqs=AT_ONCE, max_model_len=longest) as llm:
        outputs = llm.generate(
            [list(request.tokens) for request in task.requests],
            [request.params(number) for number, request in enumerate(task.requests)],
            progress=False,
        )
    return tuple(output.token_ids for output in outputs)
