"""Make label_scores.json: scikit-learn's scores on labels of two classes.

python -m venv /tmp/oracle && /tmp/oracle/bin/pip install scikit-learn==1.9.1
/tmp/oracle/bin/python tests/tasks/make_label_scores.py
"""

import json
from pathlib import Path

import numpy as np
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

HAND_MADE = [
    ([1], [1]),
    ([0], [1]),
    ([0, 0], [0, 0]),
    ([1, 1, 1], [1, 0, 1]),
    ([0, 1, 0, 1], [1, 0, 1, 0]),
    ([0, 1, 1, 0], [1, 1, 1, 1]),
]


def main() -> None:
    """Write the file next to this one."""
    random = np.random.default_rng(0)
    cases = list(HAND_MADE)
    for count in (5, 20, 100):
        for share in (0.1, 0.5, 0.9):
            labels = (random.random(count) < share).astype(int)
            flipped = random.random(count) < 0.3
            cases.append((labels.tolist(), np.where(flipped, 1 - labels, labels).tolist()))
    records = [
        {
            "labels": labels,
            "predicted": predicted,
            "accuracy": accuracy_score(labels, predicted),
            "f1": f1_score(labels, predicted, zero_division=0),
            "matthews_correlation": float(matthews_corrcoef(labels, predicted)),
        }
        for labels, predicted in cases
    ]
    lines = ",\n".join(json.dumps(record) for record in records)
    Path(__file__).with_name("label_scores.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
