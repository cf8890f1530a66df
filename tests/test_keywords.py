"""What readers bring from vLLM and transformers: each of their names is answered by ours, or by what works instead."""

import inspect
import pickle
import re
import tomllib
from pathlib import Path

import pytest

import minikv
from minikv import LLM, SamplingParams, allocate_kv_cache, install_kv_eviction, keywords
from minikv.engine import EvictionConfig
from minikv.errors import ArgumentError, KeywordError, NoAttributeError
from minikv.models import load

CALLS = {
    "LLM": LLM,
    "LLM.generate": LLM.generate,
    "LLM.chat": LLM.chat,
    "LLM.stream": LLM.stream,
    "LLM.add_request": LLM.add_request,
    "SamplingParams": SamplingParams,
    "EvictionConfig": EvictionConfig,
    "allocate_kv_cache": allocate_kv_cache,
    "install_kv_eviction": install_kv_eviction,
    "load": load,
}
OF_LLM = """tensor_parallel_size max_num_batched_tokens gpu_memory_utilization enable_prefix_caching swap_space
    trust_remote_code quantization kv_cache_dtype enable_chunked_prefill cpu_offload_gb speculative_config torch_dtype
    device_map""".split()
OF_SAMPLING = """no_repeat_ngram_size min_new_tokens min_length bad_words_ids allowed_token_ids logits_processor
    max_new_tokens do_sample num_return_sequences eos_token_id guided_json structured_outputs response_format""".split()
SENTENCES = tomllib.loads(
    (Path(minikv.__file__).parent / "messages" / "keywords.toml").read_text(encoding="utf-8")
)


@pytest.fixture(scope="module")
def llm():
    with LLM("tiny-gqa", num_blocks=16, block_size=4) as llm:
        yield llm


def refused(call, *args, **given):
    with pytest.raises(KeywordError) as caught:
        call(*args, **given)
    assert isinstance(caught.value, ArgumentError)
    assert isinstance(caught.value, TypeError)
    return caught.value


@pytest.mark.parametrize("word", OF_LLM)
def test_an_llm_answers_a_keyword_of_others_before_it_reads_a_model(word):
    error = refused(LLM, "no/such/folder", **{word: None})
    assert error.values["name"] == word
    assert f"'{word}'" in str(error)
    assert f"“{word}”" in error.text("zh")


@pytest.mark.parametrize("word", OF_SAMPLING)
def test_sampling_params_answer_a_keyword_of_others(word):
    error = refused(SamplingParams, **{word: None})
    assert error.code in ("keyword_here", "keyword_explained")


@pytest.mark.parametrize(
    ("call", "word", "here"),
    [
        ("LLM", "gpu_memory_utilization", "LLM(utilization=...)"),
        ("LLM", "tensor_parallel_size", "LLM(tp=...)"),
        ("LLM", "temperature", "SamplingParams(temperature=...)"),
        ("LLM", "swap_space", "LLM(cpu_kv_bytes="),
        ("LLM", "speculative_config", "LLM(prompt_lookup=4)"),
        ("LLM", "num_block", "Did you mean 'num_blocks'?"),
        ("LLM", "zzz", "it has: model, tokenizer, dtype,"),
        ("LLM.generate", "sampling_params", "LLM.generate(params=...)"),
        ("LLM.generate", "use_tqdm", "LLM.generate(progress=...)"),
        ("LLM.generate", "max_new_tokens", "SamplingParams(max_tokens=...)"),
        ("LLM.stream", "prompt_token_ids", "LLM.stream(prompts=...)"),
        ("LLM.add_request", "lora_request", "no adapters"),
        ("SamplingParams", "no_repeat_ngram_size", "NoRepeatNGramLogitsProcessor(3)"),
        ("SamplingParams", "min_new_tokens", "SamplingParams(min_tokens=...)"),
        ("LLM.generate", "messages", "LLM.chat(messages=...)"),
        ("SamplingParams", "guided_json", "no structured output"),
        ("SamplingParams", "max_tokns", "Did you mean 'max_tokens'?"),
        ("EvictionConfig", "sinks", "n_sink"),
        ("allocate_kv_cache", "gpu_memory_utilization", "allocate_kv_cache(utilization=...)"),
        ("install_kv_eviction", "n_sinks", "'n_sink'"),
        ("load", "torch_dtype", "load(dtype=...)"),
        ("load", "trust_remote_code", "never runs code"),
    ],
)
def test_the_sentence_says_what_works(call, word, here):
    assert here in str(refused(CALLS[call], None, **{word: 1}))


def test_what_the_table_points_to_is_there():
    """Each name here is a keyword of one of the calls, each sentence is used, and what a sentence names exists."""
    taken = {word for call in CALLS.values() for word in inspect.signature(call).parameters}
    assert set(keywords.RENAMED.values()) <= taken
    assert not set(keywords.RENAMED) & taken
    explained = [word for words in keywords.EXPLAINED.values() for word in words.split()]
    assert len(set(explained)) == len(explained)
    assert not set(explained) & (taken | set(keywords.RENAMED))
    used = set(keywords.EXPLAINED) | {each for kind in keywords.ATTRIBUTES.values() for each in kind.values()}
    assert used == set(SENTENCES)
    for sentence in SENTENCES.values():
        for said in sentence.values():
            for call, words in re.findall(r"(LLM|SamplingParams)\(([^)]*)", said):
                for word in re.findall(r"(\w+)=", words):
                    assert word in inspect.signature(CALLS[call]).parameters


def test_a_signature_stays_what_it_is():
    assert list(inspect.signature(SamplingParams).parameters)[:2] == ["temperature", "top_p"]
    assert next(iter(inspect.signature(LLM).parameters)) == "model"
    params = SamplingParams(stop=["a"], stop_token_ids=[3])
    assert pickle.loads(pickle.dumps(params)) == params
    with pytest.raises(TypeError, match="model"):
        LLM()


def test_top_k_of_minus_one_is_off():
    assert SamplingParams(top_k=-1) == SamplingParams(top_k=0) == SamplingParams()
    with pytest.raises(ArgumentError):
        SamplingParams(top_k=-2)


def test_stop_none_is_none():
    assert SamplingParams(stop=None, stop_token_ids=None) == SamplingParams()


def test_attributes_of_others(llm):
    (output,) = llm.generate("ada paris ben oslo ? ada", SamplingParams(max_tokens=1), progress=False)
    for owner, kind, ours in (
        (llm, "LLM", "snapshot"),
        (output, "RequestOutput", "text"),
        (output.completions[0], "Completion", "text"),
    ):
        for name in keywords.ATTRIBUTES[kind]:
            assert not hasattr(owner, name)
            with pytest.raises(NoAttributeError) as caught:
                getattr(owner, name)
            assert caught.value.values["name"] == name
            assert caught.value.text("zh") != str(caught.value)
        assert name not in dir(owner)
        with pytest.raises(AttributeError, match=f"no attribute '{ours}s'.*") as caught:
            getattr(owner, f"{ours}s")
        assert not isinstance(caught.value, NoAttributeError)
        assert caught.value.obj is owner
    with pytest.raises(
        AttributeError, match=r"output\.text and output\.token_ids; all n .* output\.completions"
    ):
        output.outputs  # noqa: B018
    copied = pickle.loads(pickle.dumps(output))
    assert copied.text == output.text


def test_a_tokenizer_s_name_is_no_tokenizer():
    with pytest.raises(ArgumentError) as caught:
        LLM("tiny-gqa", tokenizer="tiny-gqa")
    assert caught.value.code == "llm_tokenizer"
