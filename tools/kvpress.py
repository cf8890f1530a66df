"""An environment with kvpress, ``.venv-kvpress``, which ``make bench-kvpress`` measures minikv's policies beside.

    python -m tools.kvpress [--python PYTHON]

It takes 2 GB, and is made once. It stands apart, since kvpress pins an older transformers. Where it cannot be made a
sentence says what it needs, before anything is downloaded.
"""

import sys

from tools.environments import ROOT, TORCH, Peer

FOLDER = ROOT / ".venv-kvpress"
RELEASE = "0.5.5"
PEER = Peer(
    "tools.kvpress",
    f"kvpress {RELEASE}",
    FOLDER,
    [[TORCH], [f"kvpress=={RELEASE}", "transformers<5.3"]],
    "2 GB on the disk",
    3.0,
)

if __name__ == "__main__":
    sys.exit(PEER.main(None, __doc__.splitlines()[0]))
