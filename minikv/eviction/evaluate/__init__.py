"""``minikv evaluate``: what a policy, a budget or fewer bytes in the cache cost on a model, beside its full cache."""
