"""Write the scores of a folder's model in `transformers`: FOLDER TOKENS.npy SCORES.npy."""

import sys

import numpy as np
import torch
from transformers import AutoModelForCausalLM


def main(folder: str, tokens: str, scores: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        found = model(torch.from_numpy(np.load(tokens)), use_cache=False).logits
    np.save(scores, found.numpy())


if __name__ == "__main__":
    main(*sys.argv[1:])
