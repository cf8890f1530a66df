"""A Python in which some libraries are not installed, as on a machine that lacks them."""

import os

# Of the machine with a GPU: nothing that draws, and no Jupyter.
ABSENT = "anywidget ipywidgets IPython plotly nbclient nbformat jupytext traitlets jupyter_client ipykernel".split()

HOOK = """
import sys

class Without:
    '''A finder that does not know some modules, nor the metadata of some packages.'''

    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in {modules!r} else self.finder.find_spec(name, path, target)

    def find_distributions(self, *context, **named):
        find = getattr(self.finder, "find_distributions", None)
        found = find(*context, **named) if find else ()
        return [one for one in found if one.name.lower().replace("_", "-") not in {packages!r}]

sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
"""


def environment_without(folder, root, modules=tuple(ABSENT), packages=()):
    """The environment of such a Python; ``folder`` is a temporary one, ``root`` the tree that it imports from.

    ``modules`` are names to import ("pynvml"), ``packages`` names to install ("nvidia-ml-py").
    """
    (folder / "sitecustomize.py").write_text(HOOK.format(modules=tuple(modules), packages=tuple(packages)))
    path = os.pathsep.join([str(folder), str(root)])
    return {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "PYTHONUTF8": "1"}
