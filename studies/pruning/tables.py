"""Tables of the available results, and the sentences of `judgement`."""

from collections.abc import Mapping
from typing import Any

from studies.pruning.conditions import (
    Results,
    TextLosses,
    needles_of,
    pruned_results,
    smaller_result,
)
from studies.pruning.config import NEEDLES, TEXT, TEXT_PRUNED
from studies.pruning.judgement import MIN_LEARNED, judgements
from studies.pruning.plans import INFLUENCE, RECENCY, UNIFORM, Scale
from studies.pruning.stakes import judge_stakes
from studies.tables import cells_of_circumstances, hours, rows_of_table, section

_COMPARED_LENGTHS = (INFLUENCE, UNIFORM, RECENCY)


def all_tables(scale: Scale, results: Results) -> list[str]:
    """Return every table of a scale."""
    if not results:
        return []
    far = scale.identifiers is not None
    lines = judge_stakes(scale, results) if far else judgements(scale, results)
    what = "identifiers" if far else "text"
    sections = [
        section("Judgement", "\n".join(f"- {line}" for line in lines) or "No model is measured yet."),
        section("Runs", _table_of_runs(results)),
        section(f"Loss on {what}, minus that of the dense model", _table_of_losses(scale, results)),
        section("By length of context", _table_of_lengths(scale, results)),
    ]
    if not far:
        sections.append(section("Beside a smaller model", _table_of_smaller(scale, results)))
    sections.append(section("Items among noise", _table_of_needles(results)))
    if not far:
        sections.append(section("Fine-tuned on text", _table_of_tuning(scale, results)))
    return sections


def validation_loss(result: Mapping[str, Any]) -> float:
    """Return the last validation loss of pre-training, in nats per token."""
    (curve,) = result["pretraining"]["curves"].values()
    return curve[-1][1]


def _table_of_runs(results: Results) -> str:
    rows = []
    for run, result in results.items():
        found = result["circumstances"]["seconds"]
        config = result["pretraining"]["config"]
        positions = config["train"]["num_steps"] * config["batching"]["rows"] * config["batching"]["length"]
        measuring = sum(value for name, value in found.items() if name != "pretraining")
        rows.append(
            [
                run.model.replace("_", " "),
                str(run.seed),
                f"{result['pretraining']['summary']['parameters']:,}",
                f"{positions / 1e6:.1f}M",
                f"{validation_loss(result):.3f}",
                hours(found["pretraining"]),
                hours(measuring),
                *cells_of_circumstances(result),
            ]
        )
    head = ["model", "seed", "parameters", "positions", "held-out loss, nats a token"]
    return rows_of_table([*head, "hours: pre-training", "all else", "cores", "commit", "date"], rows)


def _table_of_losses(scale: Scale, results: Results) -> str:
    rows = []
    for run, _, losses in pruned_results(results):
        dense = losses.dense(scale.main_context).losses.mean()
        for policy in losses.policies(scale.main_context):
            found = [losses.get(policy, keep, scale.main_context) for keep in scale.shares]
            cells = ["" if one is None else f"{one.losses.mean() - dense:+.4f}" for one in found]
            rows.append([run.name, f"{dense:.4f}", policy, *cells])
    return rows_of_table(
        ["run", "loss with all tokens", "policy", *(f"keep {keep:g}" for keep in scale.shares)], rows
    )


def _table_of_lengths(scale: Scale, results: Results) -> str:
    rows = []
    for run, _, losses in pruned_results(results):
        cells = [f"{losses.dense(context).losses.mean():.4f}" for context in scale.contexts]
        rows.append([run.name, "dense", "1", *cells])
        shares = {keep for context in scale.contexts for keep in losses.shares(INFLUENCE, context)}
        for policy in _COMPARED_LENGTHS:
            for keep in sorted(shares, reverse=True):
                found = [losses.get(policy, keep, context) for context in scale.contexts]
                if all(found):
                    cells = [f"{one.losses.mean():.4f}" for one in found if one is not None]
                    rows.append([run.name, policy, f"{keep:g}", *cells])
    return rows_of_table(
        ["run", "policy", "keep", *(f"{context:,} tokens" for context in scale.contexts)], rows
    )


def _table_of_smaller(scale: Scale, results: Results) -> str:
    rows = []
    for run, _, losses in pruned_results(results):
        smaller = smaller_result(results, run)
        if smaller is None:
            continue
        context = scale.main_context
        keep = min(losses.shares(INFLUENCE, context))
        pruned, dense = losses.get(INFLUENCE, keep, context), losses.dense(context)
        assert pruned is not None
        conditions = {
            "all tokens": dense,
            f"influence, keep {keep:g}": pruned,
            "smaller, all tokens": smaller.dense(context),
        }
        for title, one in conditions.items():
            share = one.paper_flops / dense.paper_flops
            loss, flops = f"{one.losses.mean():.4f}", f"{one.paper_flops / 1e6:,.0f}"
            rows.append([run.name, title, loss, flops, f"{share:.2f}"])
    if not rows:
        return "No model has its smaller one beside it yet."
    return rows_of_table(["run", "condition", "loss", "MFLOPs (paper's unit)", "share"], rows)


def _table_of_needles(results: Results) -> str:
    """Return the accuracy by policy and share, for each query that a run has learned."""
    rows, shares = [], []
    for run, result, _ in pruned_results(results):
        for what, fine_tuned in result["fine_tuned"].items():
            if not what.startswith(NEEDLES):
                continue
            dense, *needles = needles_of(fine_tuned)
            if dense.mean.mean < MIN_LEARNED:
                continue
            shares = sorted({one.keep for one in needles}, reverse=True)
            for policy in dict.fromkeys(one.policy for one in needles):
                found = {one.keep: one.mean.mean for one in needles if one.policy == policy}
                cells = [f"{100 * found[keep]:.0f}" if keep in found else "" for keep in shares]
                of_query = [run.name, what.removeprefix(f"{NEEDLES}_"), f"{100 * dense.mean.mean:.0f}"]
                rows.append([*of_query, policy, *cells])
    if not rows:
        return "No run has learned a query yet."
    head = ["run", "query", "per cent right with all tokens", "policy"]
    return rows_of_table([*head, *(f"keep {keep:g}" for keep in shares)], rows)


def _table_of_tuning(scale: Scale, results: Results) -> str:
    rows = []
    variant = scale.tuned_variant
    for run, result, _ in pruned_results(results):
        for what in (TEXT, TEXT_PRUNED):
            if what not in result["fine_tuned"]:
                continue
            losses = TextLosses(result["fine_tuned"][what]["losses"])
            title = "with the second loss" if what == TEXT_PRUNED else "without"
            dense = f"{losses.dense(scale.main_context).losses.mean():.4f}"
            for policy in variant.policies:
                found = [losses.get(policy, keep, scale.main_context) for keep in variant.shares]
                cells = [f"{one.losses.mean():.4f}" for one in found if one is not None]
                rows.append([run.name, title, policy, dense, *cells])
    if not rows:
        return "No model is fine-tuned yet."
    head = ["run", "fine-tuned", "policy", "all tokens", *(f"keep {keep:g}" for keep in variant.shares)]
    return rows_of_table(head, rows)
