"""What does it cost to prune the tokens of a prompt, and which must stay? Runs the study.

    python -m studies.pruning --scale=small --text=corpus.jsonl --results=results/pruning
    python -m studies.pruning --scale=small --text=corpus.jsonl --results=results/pruning --list

Each run is pre-trained, measured on held-out text under every policy and share, fine-tuned and measured
again. --text: documents, in the form of prepare_data's input. You can stop the study at any instant; the
same command resumes it. To choose cores: `taskset -c 0 python ...`. docs/measurements/pruning_study.md
describes the measurements.
"""

from studies.pruning.study import Pruning
from studies.runner import main

if __name__ == "__main__":
    main(Pruning, __doc__)
