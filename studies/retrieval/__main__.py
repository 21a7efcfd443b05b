"""Does Birdie's pre-training teach retrieval? Runs all of the study, or a part.

    python -m studies.retrieval --scale=small --results=results/retrieval
    python -m studies.retrieval --scale=110m --results=results/retrieval --list

Each run is pre-trained, measured, and fine-tuned over a grid. --text: documents, in the form of
prepare_data's input; default: those of the scale. --final: a file of SQuAD, for the final measurement after
all choices. You can stop the study at any instant; the same command resumes it. To choose cores: `taskset
-c 0 python ...`; child processes use the same cores. docs/measurements/retrieval.md describes the
measurements.
"""

from studies.retrieval.study import Retrieval
from studies.runner import main

if __name__ == "__main__":
    main(Retrieval, __doc__, final=Retrieval.ask_squad)
