"""What ``load`` does with a hub that answers, refuses, or says nothing; each is a server on this machine."""

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from huggingface_hub.utils import filter_repo_objects

from minikv.errors import UnknownNameError
from minikv.models import load, sources
from minikv.models.sources import TINY
from tests.models.refusing import refused


def test_without_a_network_the_error_says_where_to_put_the_model(tmp_path):
    error = refused("some-org/some-model", UnknownNameError)
    assert error.code == "models_hub_unreachable"
    for lang in ("en", "zh"):
        said = error.text(lang)
        assert all(
            word in said for word in (str(tmp_path), "HF_HOME", "hf download some-org/some-model", *TINY)
        )


class Hub:
    """A hub on this machine that gives one answer to everything."""

    def __init__(self, status: int, headers: dict[str, str], body: object):
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                content = json.dumps(body).encode()
                self.send_response(status)
                for key, value in {**headers, "Content-Length": str(len(content))}.items():
                    self.send_header(key, value)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *args):
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def __exit__(self, *args) -> None:
        self.server.shutdown()
        self.server.server_close()


def online(monkeypatch, endpoint: str) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", endpoint)


@pytest.mark.parametrize(
    ("status", "header", "code"),
    [
        (404, "RepoNotFound", "models_hub_unknown"),
        (403, "GatedRepo", "models_hub_gated"),
        (500, "", "models_hub_unreachable"),
    ],
)
def test_what_the_hub_answers(monkeypatch, status, header, code):
    with Hub(status, {"X-Error-Code": header}, {}) as endpoint:
        online(monkeypatch, endpoint)
        assert refused("some-org/some-model", UnknownNameError).code == code


def test_pickles_on_the_hub_are_not_even_downloaded(monkeypatch):
    files = [{"rfilename": name} for name in ("config.json", "pytorch_model.bin", "onnx/model.safetensors")]
    monkeypatch.setattr(
        "huggingface_hub.snapshot_download", lambda *args, **options: pytest.fail("downloaded")
    )
    with Hub(200, {}, {"id": "org/model", "siblings": files}) as endpoint:
        online(monkeypatch, endpoint)
        assert refused("org/model").code == "models_pickle"


def test_a_model_of_the_hub_is_loaded_from_its_snapshot(monkeypatch, folder):
    asked = []

    def snapshot(name, **options):
        asked.append((name, options.get("local_files_only", False)))
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    files = [{"rfilename": "config.json"}, {"rfilename": "model.safetensors"}]
    with Hub(200, {}, {"id": "org/model", "siblings": files}) as endpoint:
        online(monkeypatch, endpoint)
        assert load("org/model").name == "org/model"
    online(monkeypatch, "http://127.0.0.1:9")  # nobody listens there: what was cached serves
    load("org/model")
    assert asked == [("org/model", False), ("org/model", True)]


def test_only_what_a_load_reads_is_downloaded(monkeypatch, folder):
    """No pickle, no code, and not the same weights a second time."""
    wanted = ["config.json", "model-00001-of-00002.safetensors", "model.safetensors.index.json", "merges.txt"]
    wanted += ["tokenizer.json", "tokenizer.model", "chat_template.jinja"]
    others = ["pytorch_model.bin", "modeling_mine.py", "consolidated.safetensors", "model.gguf", "README.md"]
    others += ["original/model.safetensors", "onnx/config.json", "model.pth"]
    left: list[list[str]] = []

    def snapshot(name, *, allow_patterns, ignore_patterns, **options):
        patterns = {"allow_patterns": allow_patterns, "ignore_patterns": ignore_patterns}
        left.append(list(filter_repo_objects(wanted + others, **patterns)))
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    with Hub(200, {}, {"id": "org/model", "siblings": []}) as endpoint:
        online(monkeypatch, endpoint)
        load("org/model")
    online(monkeypatch, "http://127.0.0.1:9")
    load("org/model")
    assert left == [wanted, wanted]


def test_a_hub_that_never_answers_is_given_up(monkeypatch):
    monkeypatch.setattr(sources, "HUB_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections and says nothing
        online(monkeypatch, f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert refused("org/model", UnknownNameError).code == "models_hub_unreachable"
