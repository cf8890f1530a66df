"""The command: train, measure, write."""

import argparse
from pathlib import Path

from tools.train_tiny.configs import MODELS, config_of
from tools.train_tiny.folder import write_folder
from tools.train_tiny.training import train

DATA = Path(__file__).parent.parent.parent / "minikv" / "models" / "data"
STEPS = 1200


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.train_tiny", description="Train the tiny models.")
    parser.add_argument("--model", choices=MODELS, help="one of them; both if left out")
    parser.add_argument("--out", type=Path, default=DATA, help="where the model folders go")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for name in [options.model] if options.model else MODELS:
        print(f"{name}, seed {options.seed}, {STEPS} steps", flush=True)
        trained = train(
            config_of(name), steps=STEPS, seed=options.seed, say=lambda line: print(line, flush=True)
        )
        card = write_folder(trained, name, options.out / name, options.seed)
        for how, recall in card["recall_by_tokens"].items():
            print(f"{how}: " + ", ".join(f"{length}: {share:.4f}" for length, share in recall.items()))


if __name__ == "__main__":
    main()
