"""The outputs of ``minikv generate`` and ``minikv bench``: raise for failed ones, print the others."""

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from minikv.errors import MiniKVError
from minikv.i18n import escape_controls

if TYPE_CHECKING:
    from minikv.engine import RequestOutput

INTERRUPTED = 130  # the exit code that shells give to a command which Ctrl+C ended


def check_answers(outputs: "Iterable[RequestOutput]") -> None:
    """Raise ``MiniKVError`` with the first error if a step failed for some of the outputs."""
    answers = [each for output in outputs for each in output.completions]
    errors = [each.error for each in answers if each.error is not None]
    if errors:
        raise MiniKVError("generate_failed", failed=len(errors), total=len(answers), error=_said(errors[0]))


def print_answers(outputs: "Mapping[int, RequestOutput]") -> None:
    """Print each output behind the numbers of its prompt and, of several, its sample; failed ones are left out."""
    for number, output in outputs.items():
        for each in output.completions:
            if each.error is None:
                place = f"{number}.{each.sample + 1}" if len(output.completions) > 1 else f"{number}"
                print(f"[{place}] {shown((each.text or '').strip())}", flush=True)


def shown(answer: str) -> str:
    """A model's answer for a terminal: without control characters, except line ends and tabs."""
    return escape_controls(answer, keep="\n\t")


def as_dict(output: "RequestOutput") -> dict[str, Any]:
    """An output as plain JSON values; times are seconds."""
    return {
        "prompt": output.prompt,
        "prompt_token_ids": list(output.prompt_token_ids),
        "num_cached": output.num_cached,
        "completions": [
            {
                "text": each.text,
                "token_ids": list(each.token_ids),
                "finish_reason": each.finish_reason,
                "error": None if each.error is None else _said(each.error),
                "num_preemptions": each.num_preemptions,
                "num_drafted": each.num_drafted,
                "num_accepted": each.num_accepted,
                "timing": vars(each.timing),
            }
            for each in output.completions
        ],
    }


def figures(outputs: "Collection[RequestOutput]", seconds: float) -> dict[str, Any]:
    """The work of ``seconds``: tokens generated, tokens of the prompts, and how many of these were cached."""
    tokens = sum(len(each.token_ids) for output in outputs for each in output.completions)
    return {
        "seconds": seconds,
        "tokens": tokens,
        "tokens_per_second": tokens / seconds,
        "prompt_tokens": sum(len(output.prompt_token_ids) for output in outputs),
        "cached_tokens": sum(output.num_cached for output in outputs),
    }


def _said(error: BaseException) -> str:
    """The class and the first line of an error."""
    return f"{type(error).__name__}: {error}".partition("\n")[0]
