"""The five names that a setup cell asks for, as small as they can be."""

import hashlib
import os
import uuid
from pathlib import Path

from IPython.display import display

PASSED = {"en": ": passed, all 1 cases (seed 0).", "zh": "：通过，1 个用例全部正确（seed 0）。"}
PAGE = '<div id="photo" style="width:40px;height:20px;background:#336">{text}</div>'


def start(number, lang):
    def check(key, function):
        try:
            print(key + (PASSED[lang] if function(2, 2, 2) == 16 else " wrong"))
        except NotImplementedError:
            print(key, "not attempted")

    def show(widget, text):
        page = PAGE.format(text=text)
        sha = hashlib.sha256(page.encode()).hexdigest()[:16]
        metadata = {}
        if "MINIKV_PHOTOS" in os.environ:
            Path(os.environ["MINIKV_PHOTOS"], f"{sha}.html").write_text(page)
            metadata = {"minikv": {"photo": sha}}
        view = {"model_id": uuid.uuid4().hex, "version_major": 2, "version_minor": 0}
        data = {"text/plain": text, "application/vnd.jupyter.widget-view+json": view}
        display(data, metadata=metadata, raw=True)

    return check, print, print, show, str
