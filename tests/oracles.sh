# Sourced after environment.sh: fetches the implementations that tests compare ours with. They stay outside .venv,
# since recurrentgemma asks for an older NumPy than ours, which it does not need.

make_oracles() {
    fetch_packages oracles "implementations to compare with" recurrentgemma einops typeguard || return 1
    export BIRDIE_ORACLES="$FETCHED"
}

# The LM Evaluation Harness with the dependencies that its tests need. .venv lacks most of them.
make_lm_eval() {
    fetch_packages lm_eval "the LM Evaluation Harness" lm_eval anyio chardet colorama DataProperty datasets dill \
        dominate filelock h11 httpcore2 httpx2 huggingface_hub Logbook lxml mbstrdecoder more-itertools msgfy \
        multiprocess pandas pathvalidate portalocker pytablewriter pytz regex sacrebleu six tabledata tabulate tqdm \
        truststore typepy xxhash || return 1
    export BIRDIE_LM_EVAL="$FETCHED"
}

# PyTorch and transformers, whose functions and models the slow tests run beside ours. On Linux PyPI's build needs
# CUDA's libraries, which are not fetched: tests that run it are skipped then.
make_torch() {
    fetch_packages torch "PyTorch and transformers" torch transformers accelerate anyio filelock h11 hf-xet httpcore2 httpx2 \
        huggingface_hub mpmath networkx packaging PyYAML regex safetensors sympy tokenizers tqdm truststore \
        typing_extensions || return 1
    if PYTHONPATH="$FETCHED" .venv/bin/python -c 'import torch' 2>/dev/null; then
        export BIRDIE_TORCH="$FETCHED"
    else
        echo "PyTorch in $FETCHED does not run here, and tests that run it are skipped; for its build for CPUs, remove" \
            "that folder and set PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu"
    fi
}

# Weights & Biases, for the tracker of that name.
make_trackers() {
    fetch_packages trackers "Weights & Biases" wandb xxhash platformdirs pydantic pydantic_core annotated-types \
        typing-inspection || return 1
    export BIRDIE_TRACKERS="$FETCHED"
}

# Apache Beam with what its local runner needs of its dependencies: its pins are not ours.
make_beam() {
    fetch_packages beam "Apache Beam" apache_beam fastavro httplib2 jsonpickle objsize pytz || return 1
    export BIRDIE_BEAM="$FETCHED"
}

# MkDocs, which builds the site of the documentation.
make_docs() {
    fetch_packages docs "MkDocs" mkdocs mkdocs-material mkdocs-material-extensions mkdocs-autorefs mkdocs-get-deps \
        mkdocstrings mkdocstrings-python babel backrefs colorama ghp-import griffelib Markdown mergedeep paginate pathspec \
        platformdirs pymdown-extensions python-dateutil pyyaml_env_tag six watchdog || return 1
    export BIRDIE_DOCS="$FETCHED"
}
