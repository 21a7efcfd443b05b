"""The covered sections, and their figures that no statement computes, with the reason."""

from studies.statements.statement import Setting

# The page and the heading of each section; "" is the whole page.
SECTIONS = (
    ("README.md", "# birdie-jax"),
    ("README.md", "## Limits"),
    ("docs/what_birdie_does.md", ""),
    ("docs/which_mixer.md", "## Recall"),
    ("docs/measurements/retrieval.md", "# Measurements: does Birdie's pre-training teach retrieval?"),
    ("docs/measurements/retrieval.md", "## What the mixture is worth: results"),
    ("docs/measurements/retrieval.md", "## Wider steps of fine-tuning: results"),
    ("docs/measurements/retrieval.md", "## Which memory retrieves: results"),
    ("docs/measurements/retrieval.md", "## When reading direction matters: results"),
    ("docs/measurements/retrieval.md", "## Whether steering pays: results"),
    ("docs/measurements/steering.md", "# Measurements: does steering pay?"),
    ("docs/measurements/steering.md", "## Results: the grid"),
    ("docs/measurements/steering.md", "## Results: contenders"),
    ("docs/measurements/steering.md", "## Results: the search"),
    ("docs/measurements/pruning_study.md", "# Measurements: which tokens of a prompt have to stay"),
    ("docs/measurements/pruning_study.md", "## Where far tokens are needed: results"),
    ("docs/measurements/bandit.md", "# Measurements: the bandit"),
    ("docs/measurements/bandit.md", "## Policies and rewards in real pre-training"),
    ("docs/measurements/bandit.md", "## Regret on problems whose best mixtures are known"),
    ("docs/measurements/bandit.md", "### Policies that follow gains"),
)
SETTINGS = (
    Setting(r"95 %", "the level of all intervals"),
    Setting(r"4,000 steps", "the cap of fine-tuning in `worth` and later scales"),
    Setting(r"rows of 4 x (128|320)|rate of 0\.002", "of the fine-tunings in `studies.retrieval.scales`"),
    Setting(
        r"every 50 steps|validation of 64 questions", "of the fine-tunings in `studies.retrieval.scales`"
    ),
    Setting(r"Asked for [24] numbers|Asked for [24],", "the sizes of the questions"),
    Setting(r"After 1,000 steps", "the length of the runs of `studies.recall`"),
    Setting(
        r"(at least|within) 10 (points )?(were|was) predicted|at (least 20|most 5) were predicted",
        "a prediction in the rules",
    ),
    Setting(
        r"128 or 64 channels|(both ways|causally), (128|64)|128 channels in two|above 64 that|half of 64|"
        r"state of 64 channels|books of 8 and 16 entries, in",
        "the sizes of models and books of `direction`",
    ),
    Setting(r"(below|includes) 0\b", "zero"),
    Setting(r"Proxies 0 and 1|those of seed 5|seed 15 of two controls", "names of runs"),
    Setting(r"EMNLP 2024|Figure 1|34B tokens at 1\.4B", "of the papers"),
    Setting(r"110M, 400M and 1\.4B|\(110M parameters\)|v5p \(1\.4B\)", "the sizes of presets"),
    Setting(r"1\.[13] times", "docs/measurements/matrix_state.md has the measurement and the plan"),
    Setting(r"still write 40 %", "`studies.retrieval.language_targets` counts it; no record"),
    Setting(r"have 12 % of the target tokens", "arms.json of a run, which is not recorded"),
    Setting(
        r"70 % of the loss|96 % of the examples", "the definitions of mixtures in `studies.small_mixtures`"
    ),
    Setting(r"4\.1M tokens|some 1,000 steps", "trials before the runs that count, without a record"),
    Setting(
        r"\| 2026-[^|]*\|[^|]*\||Python 3\.11, JAX 0\.10\.2",
        "circumstances of `docs/measurements/bandit.md`",
    ),
    Setting(
        r"181,312 parameters|causal LM 0\.3|2 layers, 32 features and 512 candidates", "`configs/tiny.py`"
    ),
    Setting(r"the paper has 4, 256", "the paper"),
    Setting(r"`learning_progress` is -1", "its definition in `birdie_jax/bandit/rewards.py`"),
    Setting(r"gave 104 to 144 % and 35 to 80 %", "trials without a record"),
    Setting(
        r"J is off by 0\.024|and by 0\.095 without|off by 0\.72|instead of 0\.(093|94)",
        "tests/studies/test_mixture_search.py has the first; the others are of the law before its limit",
    ),
)
