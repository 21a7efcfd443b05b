"""Does Birdie's pre-training teach retrieval? All of the study, or a part of it, by one command.

    python -m studies.retrieval --scale=small --results=results/retrieval
    python -m studies.retrieval --scale=110m --results=results/retrieval --list

Each run is pre-trained, measured, and fine-tuned over a grid. --text: documents, as prepare_data takes
them; default: those of the scale. --final: a file of SQuAD, for when all else is decided. Stopped at any
instant and started again with the same command, it resumes. On other cores: `taskset -c 0 python ...`,
which its processes keep to. docs/measurements/retrieval.md says what is measured and how.
"""

from studies.retrieval.study import Retrieval
from studies.runner import main

if __name__ == "__main__":
    main(Retrieval, __doc__, final=Retrieval.ask_squad)
