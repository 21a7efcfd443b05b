"""The names of a workdir's files that the report reads and writes."""

from etils import epath


class RunFiles:
    """The files of a run that concern its report.

    Attributes:
        root: the folder of the run.
        config: the configuration, JSON; a run that was started from Python may have none.
        arms: the objective arms with examples, JSON; absent where the run has no arms.
        metrics: the logged scalars, one JSON object a line.
        summary: the facts known at the end of the run, JSON.
        report: the report, HTML.
    """

    def __init__(self, root: epath.PathLike):
        self.root = epath.Path(root)
        self.config = self.root / "config.json"
        self.arms = self.root / "arms.json"
        self.metrics = self.root / "metrics.jsonl"
        self.summary = self.root / "summary.json"
        self.report = self.root / "report.html"
