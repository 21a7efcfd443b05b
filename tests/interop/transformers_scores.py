"""Write the scores of each model of a folder in `transformers`: FOLDER.

For each NAME.npy with tokens, the model is in NAME/. The script writes the scores to NAME.scores.npy.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM


def main(folder: str) -> None:
    for path in sorted(Path(folder).glob("*.npy")):
        model = AutoModelForCausalLM.from_pretrained(path.with_suffix(""), dtype=torch.float32).eval()
        with torch.no_grad():
            scores = model(torch.from_numpy(np.load(path)), use_cache=False).logits
        np.save(path.with_suffix(".scores.npy"), scores.numpy())


if __name__ == "__main__":
    main(*sys.argv[1:])
