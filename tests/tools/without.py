"""A Python in which some libraries cannot be imported, as on a machine that lacks them."""

import os

# Of the machine with a GPU: nothing that draws, and no Jupyter.
ABSENT = "anywidget ipywidgets IPython plotly nbclient nbformat jupytext traitlets jupyter_client ipykernel".split()

HOOK = """
import sys

class Without:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Without())
"""


def environment_without(folder, root, names=tuple(ABSENT)):
    """The environment of such a Python; ``folder`` is a temporary one, ``root`` the tree that it imports from."""
    (folder / "sitecustomize.py").write_text(HOOK.format(names=tuple(names)))
    path = os.pathsep.join([str(folder), str(root)])
    return {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "PYTHONUTF8": "1"}
