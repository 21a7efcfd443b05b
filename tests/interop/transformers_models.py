"""Use each model of a folder like a user of `transformers`, and write the results: FOLDER.

For each NAME.npz with inputs, the model is in NAME/. The script writes the results to NAME.found.npz.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    Trainer,
    TrainingArguments,
)
from transformers import AutoModelForSequenceClassification as AutoClassifier

TRUSTED = {"trust_remote_code": True}


def language_model(folder: Path, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    model = AutoModelForCausalLM.from_pretrained(folder, **TRUSTED).eval()
    tokens, mask = (torch.from_numpy(given[name]).long() for name in ("tokens", "mask"))
    prefix, found = int(given["prefix"]), {}
    with torch.no_grad():
        found["whole"] = model(tokens, attention_mask=mask).logits
        found["alone"] = model(tokens[1:, mask[1] > 0]).logits
        context = (tokens == 1).long().argmax(1) - (mask == 0).sum(1)
        causal = model(tokens, attention_mask=mask, context_length=torch.zeros_like(context)).logits
        found["given"] = model(tokens, attention_mask=mask, context_length=context).logits
        found["direction_matters"] = torch.tensor(bool((causal - found["whole"]).abs().max() > 0.1))
        right = torch.cat([tokens[1:, mask[1] > 0], tokens[1:, mask[1] == 0]], 1)
        found["right"] = model(right, attention_mask=mask[1:].flip(1)).logits[:, : int(mask[1].sum())]
        found["kept"] = model(tokens, attention_mask=mask, logits_to_keep=3).logits
        for name, swap in (("steps", [0, 1]), ("reordered", [1, 0])):
            read = model(tokens[:, :prefix], attention_mask=mask[:, :prefix], use_cache=True)
            cache, parts = read.cache, [read.logits[swap]]
            cache.reorder_cache(torch.tensor(swap))
            before = cache_sizes(cache)
            # The tokens after the prefix one by one, then the last two at once.
            for first, last in [(at, at + 1) for at in range(prefix, tokens.shape[1] - 2)] + [(-2, None)]:
                cut = mask if last is None else mask[:, :last]
                step = model(
                    tokens[swap][:, first:last], attention_mask=cut[swap], cache=cache, use_cache=True
                )
                parts.append(step.logits)
            found[name] = torch.cat(parts, 1)[swap]
            found["cache_grows"] = torch.tensor(cache_sizes(cache) != before)
        code = sys.modules[type(model).__module__]
        for name in ("CHUNK", "MATRIX_CHUNK"):
            if hasattr(code, name):
                setattr(code, name, 8)
        found["chunks"] = model(tokens, attention_mask=mask).logits
        half = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, **TRUSTED)
        found["half_is_finite"] = half(tokens, attention_mask=mask).logits.isfinite().all()
    found |= answers(model, folder, given) | training(model, tokens, mask)
    if folder.name == "gated_ssm_plus":
        rows = {"input_ids": tokens[:, :30], "labels": tokens[:, 30:]}
        found["accumulates"] = accumulates(AutoModelForSeq2SeqLM, folder, rows)
    model.save_pretrained(folder / "saved")
    again = AutoModelForCausalLM.from_pretrained(folder / "saved", **TRUSTED).eval()
    with torch.no_grad():
        found["saved"] = again(tokens, attention_mask=mask).logits
    return {name: np.asarray(value) for name, value in found.items()}


def cache_sizes(cache) -> list[torch.Size]:
    return [tensor.shape for layer in cache.layers for tensor in layer.values()]


def answers(model, folder: Path, given: dict[str, np.ndarray]) -> dict[str, object]:
    """Return the greedy answers, and the checks of beams and sampling."""
    tokenizer = AutoTokenizer.from_pretrained(folder, **TRUSTED)
    prompts = tokenizer(given["prompts"].tolist(), return_tensors="pt", padding=True)
    length, most = prompts.input_ids.shape[1], {"max_new_tokens": int(given["max_tokens"])}
    greedy = model.generate(**prompts, **most)
    texts = [tokenizer.decode(row[length:], skip_special_tokens=True) for row in greedy]
    beams = model.generate(**prompts, **most, num_beams=3)
    same = model.generate(**prompts, **most, num_beams=3, use_cache=False)
    sampled = model.generate(**prompts, **most, do_sample=True, temperature=100.0)[:, length:]
    # With a prefix of the answer, a wrong length of the context changes the scores.
    tokens = torch.cat([prompts.input_ids, torch.full((len(texts), 3), 300)], 1)
    first = {"max_new_tokens": 1, "output_scores": True, "return_dict_in_generate": True}
    masked, unmasked = (
        model.generate(tokens, attention_mask=mask, **first).scores[0]
        for mask in ((tokens != tokenizer.pad_token_id).long(), None)
    )
    return {
        "padding_is_found": torch.tensor(torch.equal(masked, unmasked)),
        "prompt_tokens": prompts.input_ids,
        "answers": greedy[:, length:],
        "texts": np.array(texts),
        "beams_are_cached": torch.tensor(torch.equal(beams, same)),
        "special_tokens": sampled[sampled < 256].unique(),
    }


def training(model, tokens: torch.Tensor, mask: torch.Tensor) -> dict[str, object]:
    """Return the loss of the targets, and whether gradient checkpointing gives the same gradients."""
    labels = tokens.masked_fill((mask == 0) | ((tokens == 1).cumsum(1) == 0) | (tokens == 1), -100)
    gradients = []
    model.train()
    for checkpoints in (False, True):
        if checkpoints:
            model.gradient_checkpointing_enable()
        model.zero_grad()
        loss = model(tokens, attention_mask=mask, labels=labels).loss
        loss.backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    model.gradient_checkpointing_disable()
    model.eval()
    pairs = zip(*gradients, strict=True)
    alike = all(torch.allclose(one, other, atol=1e-5, rtol=1e-4) for one, other in pairs)
    return {"loss": loss.detach(), "checkpoints_are_alike": torch.tensor(alike)}


def accumulates(kind, folder: Path, rows: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return whether `Trainer` takes the same gradient of two rows at once and one by one."""
    examples, norms = [dict(zip(rows, row, strict=True)) for row in zip(*rows.values(), strict=True)], []
    for parts in (1, 2):
        with tempfile.TemporaryDirectory() as output:
            settings = TrainingArguments(
                output,
                max_steps=1,
                per_device_train_batch_size=2 // parts,
                gradient_accumulation_steps=parts,
                logging_steps=1,
                save_strategy="no",
                report_to=[],
                use_cpu=True,
            )
            trainer = Trainer(kind.from_pretrained(folder, **TRUSTED), settings, train_dataset=examples)
            trainer.train()
        norms.append(trainer.state.log_history[0]["grad_norm"])
    return torch.tensor(abs(norms[0] - norms[1]) < 1e-3 * norms[0])


def encoder(folder: Path, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    tokens, mask = (torch.from_numpy(given[name]).long() for name in ("tokens", "mask"))
    model, found = AutoModelForMaskedLM.from_pretrained(folder, **TRUSTED).eval(), {}
    classifier = AutoClassifier.from_pretrained(folder, **TRUSTED).eval()
    with torch.no_grad():
        found["whole"] = model(tokens, attention_mask=mask).logits
        found["alone"] = model(tokens[1:, mask[1] > 0]).logits
        found["classes"] = classifier(tokens, attention_mask=mask).logits
    found["loss"] = model(tokens, attention_mask=mask, labels=tokens.masked_fill(mask == 0, -100)).loss
    found["loss"].backward()
    classifier(tokens, attention_mask=mask, labels=torch.tensor([0, 1])).loss.backward()
    if folder.name == "bigs":
        kinds = {AutoModelForMaskedLM: tokens, AutoClassifier: torch.tensor([0, 1])}
        alike = [accumulates(kind, folder, {"input_ids": tokens, "labels": kinds[kind]}) for kind in kinds]
        found["accumulates"] = torch.stack(alike).all()
    model.save_pretrained(folder / "saved")
    again = AutoModelForMaskedLM.from_pretrained(folder / "saved", **TRUSTED).eval()
    with torch.no_grad():
        found["saved"] = again(tokens, attention_mask=mask).logits
    tokenizer = AutoTokenizer.from_pretrained(folder, **TRUSTED)
    found["prompt_tokens"] = tokenizer(
        given["prompts"].tolist()[0], "b[MASK]", return_tensors="pt"
    ).input_ids
    return {name: np.asarray(value.detach()) for name, value in found.items()}


def main(folder: str) -> None:
    for path in sorted(Path(folder).glob("*.npz")):
        given, model = dict(np.load(path)), path.with_suffix("")
        config = AutoConfig.from_pretrained(model, **TRUSTED)
        use = encoder if config.model_type == "birdie_encoder" else language_model
        np.savez(path.with_suffix(".found.npz"), **use(model, given))
    assert "jax" not in sys.modules


if __name__ == "__main__":
    main(*sys.argv[1:])
