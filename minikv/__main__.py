"""``python -m minikv`` is ``minikv``."""

from minikv.cli import main

main()
