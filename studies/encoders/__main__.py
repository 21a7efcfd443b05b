"""What are gates and state-space layers worth in an encoder? All of the study, or a part, by one command.

    python -m studies.encoders --scale=small --text=corpus.jsonl --results=results/encoders
    python -m studies.encoders --scale=small --text=corpus.jsonl --results=results/encoders --list

Each run is pre-trained by masked LM, measured, and fine-tuned on six tasks over a grid. --text: JSON lines
with the fields `text` and `source`, one document each. Stopped at any instant and started again with the
same command, it resumes. On other cores: `taskset -c 0 python ...`. docs/measurements/encoders.md says what
is measured and how.
"""

from studies.encoders.study import Encoders
from studies.runner import main

if __name__ == "__main__":
    main(Encoders, __doc__)
