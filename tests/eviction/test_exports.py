"""What ``minikv.eviction`` gives away: every name is there and is that of its file; blocks need no transformers."""

import importlib
import subprocess
import sys

import pytest

from minikv import eviction


@pytest.mark.parametrize("name", eviction.__all__)
def test_every_name_is_that_of_its_file(name):
    home = importlib.import_module(f"minikv.eviction.{eviction._HOME[name]}")
    assert getattr(eviction, name) is getattr(home, name)


def test_the_list_is_whole_and_in_order():
    assert set(eviction.__all__) == set(eviction._HOME)
    assert "PagedEviction" in eviction.__all__
    with pytest.raises(AttributeError):
        eviction.NoSuchName  # noqa: B018


def test_eviction_on_blocks_needs_no_transformers():
    code = "import sys; from minikv.eviction import PagedEviction; print('transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
