"""Pre-train a GPT-2 or a LLaMA, with torchrun on many devices; docs/training.md says how to start and how to resume."""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import AutoConfig, AutoModelForCausalLM, get_scheduler

import moga
from moga.study import checkpoints
from moga.study.tokens import token_batches

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
add = parser.add_argument
add("--data", nargs="+", default=[], help="text files (read as bytes), .bin files of tokens, or those of a --dataset")
add("--dataset", nargs="+", default=[], help="one of Hugging Face, streamed: name and subset; json for --data a.jsonl")
add("--tokenizer", help="name or directory of the one for --dataset; bytes without it")
add("--vocabulary", type=int, help="number of tokens of .bin files; 50304 without it")
add("--out", type=Path, required=True, help="directory for checkpoints, which all processes share")
add("--model", choices=["gpt2", "llama"], default="gpt2", help="family")
add("--width", type=int, default=256, help="features; each head has 64, or all if they are fewer")
add("--depth", type=int, default=4, help="blocks")
add("--context", type=int, default=256, help="tokens of a sequence")
add("--batch", type=int, default=32, help="sequences of a step, of all processes together")
add("--accumulate", type=int, default=1, help="parts in which a process takes its sequences")
add("--recompute", action="store_true", help="recompute activations: less memory, more time")
add("--precision", choices=["float32", "bfloat16"], default="float32", help="of the forward and backward pass")
add("--recipe", choices=moga.RECIPES, default="moga-row", metavar="NAME", help="a row of docs/recipes.md")
add("--lr", type=float, default=0.05, help="learning rate")
add("--weight-decay", type=float, default=0.1, help="times lr, what a step takes off the weights")
add("--base-width", type=int, help="width at which lr is that of the optimizer without scales: docs/base-widths.md")
add("--base-depth", type=int, help="depth at which lr was tuned: docs/depth.md")
add("--clip", type=float, default=1.0, help="largest norm of the gradient; inf for none")
add("--schedule", choices=["cosine", "warmup_stable_decay"], default="cosine", help="of lr")
add("--warmup", type=int, default=100, help="steps in which lr rises")
add("--steps", type=int, default=1000, help="steps of the run")
add("--save-every", type=int, default=500, help="steps from one checkpoint to the next")

POSITIVE = ("width", "depth", "context", "batch", "accumulate", "lr", "clip", "steps", "save_every")
FREE = ("data", "steps", "save_every", "accumulate", "recompute")  # may be others when a run goes on


def build(args, vocabulary, mesh):
    def config_of(width):
        if width > 64 and width % 64:
            raise SystemExit(f"a width of {width} is no multiple of 64, the features of a head")
        size = {"hidden_size": width, "intermediate_size": 3 * width, "num_attention_heads": max(1, width // 64)}
        shape = {"num_hidden_layers": args.depth, "max_position_embeddings": args.context, "vocab_size": vocabulary}
        plain = {"tie_word_embeddings": False, "use_cache": False, "bos_token_id": None, "eos_token_id": None}
        dropout = dict.fromkeys(["resid_pdrop", "embd_pdrop", "attn_pdrop"], 0.0)
        return AutoConfig.for_model(args.model, **size, **shape, **plain, **dropout)

    with torch.device("meta"):  # it is sharded before it takes memory, so no process ever holds the whole model
        model = AutoModelForCausalLM.from_config(config_of(args.width))
    moga.scale_branches_(model, base_depth=args.base_depth or args.depth)
    if args.recompute:
        model.gradient_checkpointing_enable()
    policy = MixedPrecisionPolicy(param_dtype=getattr(torch, args.precision), reduce_dtype=torch.float32)
    for block in [part for part in model.modules() if type(part).__name__ in model._no_split_modules]:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy).to_empty(device=mesh.device_type).init_weights()  # for the buffers
    moga.initialize_(model, args.recipe, generator=torch.Generator(mesh.device_type).manual_seed(0))
    base = config_of(args.base_width) if args.base_width else None
    return model, moga.optimizer(model, args.recipe, lr=args.lr, weight_decay=args.weight_decay, base=base)


def main(args):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    decay = args.steps // 5 if args.schedule == "warmup_stable_decay" else 0
    for word in POSITIVE:
        if not getattr(args, word) > 0:
            raise SystemExit(f"--{word.replace('_', '-')} {getattr(args, word)} is not above 0")
    if args.batch % (ranks * args.accumulate):
        raise SystemExit(f"--batch {args.batch} is not {ranks} processes x {args.accumulate} parts x whole sequences")
    if args.warmup + decay > args.steps:
        raise SystemExit(f"--steps {args.steps} is less than --warmup {args.warmup} and {decay} steps of decay")
    words = {name: value for name, value in vars(args).items() if name != "out"}
    mesh = dist.init_device_mesh(device.type, (ranks,))  # chooses this process's device, too
    checkpoint, found = checkpoints.last(args.out, words, FREE)
    size = {"batch": args.batch, "context": args.context, "vocabulary": args.vocabulary}
    batches = token_batches(args.data, args.dataset, tokenizer=args.tokenizer, **size)
    model, optimizer = build(args, batches.vocabulary, mesh)
    options = {"num_decay_steps": decay} if decay else None
    scheduler = get_scheduler(args.schedule, optimizer, args.warmup, args.steps, options)
    if rank == 0:
        print(found, flush=True)
    if checkpoint:
        checkpoints.load(checkpoint, model, optimizer, scheduler=scheduler, data=batches)
    for step, batch in zip(range(scheduler.last_epoch + 1, args.steps + 1), batches, strict=False):
        total = torch.zeros((), device=device)
        for i, part in enumerate(torch.from_numpy(batch[rank::ranks]).to(device).chunk(args.accumulate)):
            model.set_requires_gradient_sync(i == args.accumulate - 1)
            logits = model(input_ids=part[:, :-1]).logits.float()
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten()) / args.accumulate
            loss.backward()
            total += loss.detach() / ranks
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
        optimizer.zero_grad()
        lr = scheduler.get_last_lr()[0]
        scheduler.step()
        dist.all_reduce(total)
        if rank == 0:
            print(f"step {step} loss {total.item():.6f} lr {lr:.4g} skipped {optimizer.skipped}", flush=True)
        if step % args.save_every == 0 or step == args.steps:
            checkpoints.save(args.out, step, words, model, optimizer, scheduler=scheduler, data=batches)


if __name__ == "__main__":
    alone = {} if "WORLD_SIZE" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group(**alone)
    main(parser.parse_args())
    dist.destroy_process_group()
