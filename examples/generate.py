"""Greedy decoding with a model of transformers: `python examples/generate.py`.

A Llama with random weights, or an existing model with `--model NAME`, decodes with torch and, after
`tritemm.convert`, with tritemm; step by step from Python, and on a GPU as one CUDA graph per token
(`torch.compile(mode="reduce-overhead")` over a static cache). Prints tokens per second, and how
many tokens are the same. `--tiny` also runs on a CPU, in Triton's interpreter.
"""

import argparse
import importlib.util
import sys
import time

import torch

import tritemm


def model_of(args):
    import transformers

    if args.model:
        made = transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=args.dtype)
    else:
        tiny = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}
        small = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16}
        heads = 2 if args.tiny else 32
        config = transformers.LlamaConfig(
            **(tiny if args.tiny else small), num_attention_heads=heads,
            num_key_value_heads=heads // 2, vocab_size=64 if args.tiny else 32000,
            max_position_embeddings=1024, tie_word_embeddings=True,
        )  # fmt: skip
        torch.manual_seed(0)
        made = transformers.LlamaForCausalLM(config).to(args.dtype)
    return made.to(args.device).eval()


def next_token(model, ids, cache):
    logits = model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
    return logits.argmax(-1)


def decode(model, args, step):
    """The tokens [batch, tokens], and tokens per second; the prompt is not timed."""
    from transformers import StaticCache

    random = torch.Generator().manual_seed(0)
    shape = args.batch, args.prompt
    ids = torch.randint(model.config.vocab_size, shape, generator=random).to(args.device)
    cache = StaticCache(config=model.config, max_cache_len=args.prompt + args.tokens)
    token = next_token(model, ids, cache)
    tokens = [token]
    begin = now(args.device)
    for _ in range(args.tokens - 1):
        token = step(model, token, cache).clone()  # a graph writes to the same memory each time
        tokens.append(token)
    seconds = now(args.device) - begin
    return torch.cat(tokens, 1), args.batch * (args.tokens - 1) / seconds


def now(device):
    """The time in seconds, once the device has finished its work."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def ways(args):
    """Name -> the function that makes one more token."""
    yield "eager", next_token
    if args.device == "cuda":
        torch._dynamo.reset()
        yield "graph", torch.compile(next_token, mode="reduce-overhead", fullgraph=True)


def arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", help="name or folder of a model, as transformers takes it")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="bfloat16")
    parser.add_argument("--tiny", action="store_true", help="a few tokens of a tiny model")
    args = parser.parse_args(argv)
    args.dtype = getattr(torch, args.dtype)
    args.device = "cuda" if torch.cuda.is_available() else "cpu"
    args.prompt = 4 if args.tiny else 64
    args.tokens = min(args.tokens, 4) if args.tiny else args.tokens
    return args


@torch.no_grad()
def main(argv=None):
    args = arguments(argv)
    if importlib.util.find_spec("transformers") is None:
        print("examples/generate.py needs transformers: pip install '.[model]'", file=sys.stderr)
        return 2
    if args.device == "cpu" and not args.tiny:
        print("examples/generate.py needs a CUDA device, or --tiny", file=sys.stderr)
        return 2
    model, first = model_of(args), None
    for name in ("torch", "tritemm"):
        if name == "tritemm":
            print(tritemm.convert(model))
        for way, step in ways(args):
            decode(model, args, step)  # compiles
            tokens, speed = decode(model, args, step)
            first = tokens if first is None else first
            same = int((tokens == first).all(0).cumprod(0).sum())
            print(f"{name:8}{way:6}{speed:10.1f} tokens/s; the first {same} tokens are torch's")
    return 0


if __name__ == "__main__":
    sys.exit(main())
