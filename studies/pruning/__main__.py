"""What does it cost to prune the tokens of a prompt, and which have to stay? By one command.

    python -m studies.pruning --scale=small --text=corpus.jsonl --results=results/pruning
    python -m studies.pruning --scale=small --text=corpus.jsonl --results=results/pruning --list

Each run is pre-trained, measured on held-out text under every policy and share, fine-tuned and measured
again. --text: documents, as prepare_data takes them. Stopped at any instant and started again with the same
command, it resumes. On other cores: `taskset -c 0 python ...`. docs/measurements/pruning_study.md says what
is measured and how.
"""

from studies.pruning.study import Pruning
from studies.runner import main

if __name__ == "__main__":
    main(Pruning, __doc__)
