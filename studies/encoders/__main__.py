"""What are gates and state-space layers worth in an encoder? Runs all of the study, or a part.

    python -m studies.encoders --scale=small_tuned --text=corpus.jsonl --results=results/encoders
    python -m studies.encoders --scale=small_tuned --text=corpus.jsonl --results=results/encoders --list

Each run is pre-trained by masked LM, measured, and fine-tuned on six tasks over a grid. --text: JSON lines
with the fields `text` and `source`, one document each. You can stop the study at any instant; the same
command resumes it. To choose cores: `taskset -c 0 python ...`. docs/measurements/encoders.md describes the
measurements.
"""

from studies.encoders.study import Encoders
from studies.runner import main

if __name__ == "__main__":
    main(Encoders, __doc__)
