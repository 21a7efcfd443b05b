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
from studies.pruning.judgement import judgements, nats
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
        dense = losses.dense(scale.main_context)
        rows.append([run.name, "dense: the loss itself", f"{dense.losses.mean():.4f}"])
        for policy in losses.policies(scale.main_context):
            cells = []
            for keep in scale.shares:
                found = losses.get(policy, keep, scale.main_context)
                cells.append("" if found is None else nats(losses.difference(dense, found)))
            rows.append([run.name, policy, *cells])
    width = 2 + len(scale.shares)
    rows = [row + [""] * (width - len(row)) for row in rows]
    return rows_of_table(["run", "policy", *(f"keep {keep:g}" for keep in scale.shares)], rows)


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
        conditions = {"smaller, dense": smaller.dense(context)}
        for keep in losses.shares(INFLUENCE, context):
            found = losses.get(INFLUENCE, keep, context)
            assert found is not None
            conditions[f"influence, keep {keep:g}"] = found
        dense = conditions["dense"] = losses.dense(context)
        for title, one in conditions.items():
            share = one.paper_flops / dense.paper_flops
            loss, flops = f"{one.losses.mean():.4f}", f"{one.paper_flops / 1e6:,.0f}"
            rows.append([run.name, title, loss, flops, f"{share:.2f}"])
    if not rows:
        return "No model has its smaller one beside it yet."
    return rows_of_table(["run", "condition", "loss", "MFLOPs (paper's unit)", "of dense"], rows)


def _table_of_needles(results: Results) -> str:
    rows, shares = [], []
    for run, result, _ in pruned_results(results):
        for what, fine_tuned in result["fine_tuned"].items():
            if not what.startswith(NEEDLES):
                continue
            needles = needles_of(fine_tuned)
            shares = sorted({one.keep for one in needles}, reverse=True)
            for policy in dict.fromkeys(one.policy for one in needles):
                by_share = {one.keep: one.mean for one in needles if one.policy == policy}
                cells = [
                    f"{100 * by_share[keep].mean:.0f} ({100 * by_share[keep].low:.0f} .. "
                    f"{100 * by_share[keep].high:.0f})"
                    if keep in by_share
                    else ""
                    for keep in shares
                ]
                rows.append([run.name, what.removeprefix(f"{NEEDLES}_"), policy, *cells])
    if not rows:
        return "No model is fine-tuned yet."
    return rows_of_table(["run", "query", "per cent right", *(f"keep {keep:g}" for keep in shares)], rows)


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
