"""Train the two tiny models that ship in the wheel, from nothing. One CPU thread took 18 and 29 minutes.

    python -m tools.train_tiny [--model tiny-gqa|tiny-mla] [--out DIR] [--seed N]

``configs.py`` says what the models are, ``training.py`` how they learn, ``measure.py`` what they have learned,
``folder.py`` what is written: a model folder that transformers reads as any other.
"""
