"""Pre-train a GPT-2 or a LLaMA, with torchrun on many devices; docs/training.md says how to start and how to resume."""

import argparse
import shutil
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import AutoConfig, AutoModelForCausalLM, get_scheduler

import moga
from moga.study.tokens import token_batches

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
add = parser.add_argument
add("--data", nargs="+", default=[], help="text files (read as bytes), .bin files of tokens, or those of a --dataset")
add("--dataset", nargs="+", default=[], help="one of Hugging Face, streamed: name and subset; json for --data a.jsonl")
add("--tokenizer", help="name or directory of the one for --dataset; bytes without it")
add("--out", type=Path, required=True, help="directory for checkpoints, which all processes share")
add("--model", choices=["gpt2", "llama"], default="gpt2", help="family")
add("--width", type=int, default=256, help="features; each head has 64")
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
add("--clip", type=float, default=1.0, help="largest norm of the gradient")
add("--schedule", choices=["cosine", "warmup_stable_decay"], default="cosine", help="of lr")
add("--warmup", type=int, default=100, help="steps in which lr rises")
add("--steps", type=int, default=1000, help="steps of the run")
add("--save-every", type=int, default=500, help="steps from one checkpoint to the next")


def build(args, vocabulary, device):
    def config_of(width):
        size = {"hidden_size": width, "intermediate_size": 3 * width, "num_attention_heads": max(1, width // 64)}
        shape = {"num_hidden_layers": args.depth, "max_position_embeddings": args.context, "vocab_size": vocabulary}
        plain = {"tie_word_embeddings": False, "use_cache": False, "bos_token_id": None, "eos_token_id": None}
        dropout = dict.fromkeys(["resid_pdrop", "embd_pdrop", "attn_pdrop"], 0.0)
        return AutoConfig.for_model(args.model, **size, **shape, **plain, **dropout)

    with torch.device("meta"):  # it is sharded before it takes memory, so no process ever holds the whole model
        model = AutoModelForCausalLM.from_config(config_of(args.width))
    moga.scale_branches_(model, base_depth=args.base_depth or args.depth)
    if args.recompute:
        model.activation_checkpointing_enable()
    mesh = dist.init_device_mesh(device.type, (dist.get_world_size(),))  # chooses this process's device, too
    policy = MixedPrecisionPolicy(param_dtype=getattr(torch, args.precision), reduce_dtype=torch.float32)
    for block in [part for part in model.modules() if type(part).__name__ in model._no_split_modules]:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy).to_empty(device=device).init_weights()  # for the buffers
    moga.initialize_(model, args.recipe, generator=torch.Generator(device).manual_seed(0))
    base = config_of(args.base_width) if args.base_width else None
    return model, moga.optimizer(model, args.recipe, lr=args.lr, weight_decay=args.weight_decay, base=base)


def state_of(model, optimizer, scheduler, batches):
    weights, averages = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": averages, "scheduler": scheduler, "data": batches}


def save(out, step, state):
    dcp.save(state, checkpoint_id=out / "unfinished")  # returns when every process has written its part
    if dist.get_rank() == 0:  # only what is complete gets its name; the last two are kept
        (out / "unfinished").rename(out / f"step-{step:07}")
        for old in sorted(out.glob("step-*"))[:-2]:
            shutil.rmtree(old)


def main(args):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    if args.batch % (ranks * args.accumulate):
        raise SystemExit(f"--batch {args.batch} is not {ranks} processes x {args.accumulate} parts x whole sequences")
    batches = token_batches(args.data, args.dataset, batch=args.batch, context=args.context, tokenizer=args.tokenizer)
    model, optimizer = build(args, batches.vocabulary, device)
    decay = {"num_decay_steps": args.steps // 5} if args.schedule == "warmup_stable_decay" else None
    scheduler = get_scheduler(args.schedule, optimizer, args.warmup, args.steps, decay)
    found = [sorted(args.out.glob("step-*"))[-1:]]
    dist.broadcast_object_list(found)  # what the first process sees
    for last in found[0]:
        state = state_of(model, optimizer, scheduler, batches)
        dcp.load(state, checkpoint_id=last)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    if rank == 0:
        print(f"going on from {found[0][0]}" if found[0] else f"from the beginning: no checkpoint in {args.out}")
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
        scheduler.step()
        dist.all_reduce(total)
        if rank == 0:
            print(f"step {step} loss {total.item():.6f}", flush=True)
        if step % args.save_every == 0 or step == args.steps:
            save(args.out, step, state_of(model, optimizer, scheduler, batches))


if __name__ == "__main__":
    alone = {} if dist.is_torchelastic_launched() else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group(**alone)
    main(parser.parse_args())
    dist.destroy_process_group()
