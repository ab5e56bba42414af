"""Times the CPU kernels, each beside its bound: `python benchmarks/kernels_cpu.py [--seconds 4] [--threads 1 2]`.

The machine may be shared, so the members of a group run in turns (A B A B), each call short, and a line shows the best
and the median. Ratios within a group are what to compare. Weights are read from a buffer larger than the caches.
"""

import argparse
import os
import platform
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from smoe.kernels import (
    Attention,
    ExpertTable,
    ExpertTensors,
    Linear,
    RMSNorm,
    Rows,
    alloc_huge,
    moe,
    native,
    topk_softmax,
)
from smoe.kernels.int4 import quantise
from smoe.kernels.residual import decode_into, encode

BF16 = torch.bfloat16
Case = tuple[Callable[[int], object], float]  # called with a running number; bytes or operations a call


def take_turns(cases: dict[str, Case], seconds: float) -> dict[str, list[float]]:
    """Seconds a call of each case, ascending."""
    for call, _ in cases.values():
        call(0)
    times: dict[str, list[float]] = {name: [] for name in cases}
    end, turn = time.perf_counter() + seconds, 0
    while time.perf_counter() < end:
        turn += 1
        for name, (call, _) in cases.items():
            start = time.perf_counter()
            call(turn)
            times[name].append(time.perf_counter() - start)
    return {name: sorted(values) for name, values in times.items()}


def report(title: str, cases: dict[str, Case], bound: str, unit: str, scale: float, seconds: float) -> None:
    """One group: rates, and the share of the case named `bound` (best over best, median over median)."""
    times = take_turns(cases, seconds)
    print(f"\n{title}")
    best_bound = cases[bound][1] / times[bound][0]
    median_bound = cases[bound][1] / times[bound][len(times[bound]) // 2]
    for name, (_, amount) in cases.items():
        best, median = amount / times[name][0], amount / times[name][len(times[name]) // 2]
        share = f"{best / best_bound:4.0%} {median / median_bound:4.0%} of {bound}"
        print(f"  {name:28s} best {best / scale:8.1f}  median {median / scale:8.1f} {unit}   {share}")


def one(function: Callable[[], object]) -> Callable[[int], object]:
    """A case that does not care which turn it is."""
    return lambda _: function()


def stream_case(memory: Tensor, size: int, threads: int) -> Case:
    """Sum of `size` bytes, at another place of the buffer each turn."""
    lib, out = native.library(), torch.zeros(1)
    if lib is None:
        return lambda _: memory[:size].view(torch.float32).sum(), float(size)
    places, call = memory.numel() // size, lib.released.smoe_stream
    return lambda i: call(threads, memory.data_ptr() + i % places * size, size // 4, out.data_ptr()), float(size)


def weights_read_once(seconds: float, threads: int) -> None:
    """Experts and linear layers at one row: bound by reading the weights."""
    dim, ffn, num = 2048, 1024, 48
    size = 3 * dim * ffn * 2
    memory = alloc_huge(num * size)
    values = memory.view(BF16).view(num, 3, dim * ffn)
    values.copy_(torch.randn(3, dim * ffn) / 45)
    table = ExpertTable(num, dim, ffn)
    for slot, (gate, up, down) in enumerate(values.unbind(0)):
        table.set(slot, ExpertTensors(gate.view(ffn, dim), up.view(ffn, dim), down.view(dim, ffn)))
    x = torch.randn(1, dim)
    for k in (1, 8):
        ids = [torch.arange(k * i, k * i + k, dtype=torch.int32).view(1, k) for i in range(num // k)]
        weights = torch.rand(1, k)
        cases: dict[str, Case] = {
            "stream": stream_case(memory, k * size, threads),
            "moe": (lambda i, ids=ids, w=weights: moe(x, ids[i % len(ids)], ids[i % len(ids)], w, table), k * size),  # type: ignore[misc]
        }
        report(
            f"moe, {k} experts x 1 row, D=2048 F=1024 bf16, {threads} threads", cases, "stream", "GB/s", 1e9, seconds
        )
    for outputs in (2048, 8192):
        layers = [Linear(w) for w in memory.view(BF16).view(-1, outputs, dim)]
        size = outputs * dim * 2
        cases = {
            "stream": stream_case(memory, size, threads),
            "Linear": (lambda i, layers=layers: layers[i % len(layers)](x), size),  # type: ignore[misc]
        }
        report(f"Linear 1 x {dim} -> {outputs} bf16, {threads} threads", cases, "stream", "GB/s", 1e9, seconds)


def rebuilt(seconds: float) -> None:
    """An expert from its 4-bit copy and its residual, on one thread: bound by reading those and writing it, as a copy
    of the expert is by reading and writing it."""
    rows, columns, group_size, num = 3072, 2048, 64, 8
    weight = (torch.randn(rows, columns) / 45).to(BF16)
    copy = quantise(weight, group_size)
    content = encode(weight, *copy, group_size).content
    copies = [tuple(part.clone() for part in copy) for _ in range(num)]
    kept = alloc_huge(num * len(content)).view(num, -1)
    kept.copy_(content)
    source, slots = (alloc_huge(num * weight.nbytes).view(num, -1) for _ in range(2))
    source.copy_(weight.view(torch.uint8).view(-1))
    out = [slot.view(BF16).view(rows, columns) for slot in slots]
    cases: dict[str, Case] = {
        "copy": (lambda i: slots[i % num].copy_(source[(i + 3) % num]), weight.nbytes),
        "rebuild": (lambda i: decode_into(out[i % num], kept[i % num], *copies[i % num], group_size), weight.nbytes),
    }
    share = len(content) / weight.nbytes
    title = f"expert of {weight.nbytes / 1e6:.1f} MB bf16 from its 4-bit copy and {share:.1%} of its bytes, 1 thread"
    report(title, cases, "copy", "GB/s", 1e9, seconds)


def products(seconds: float, threads: int) -> None:
    """Many rows: bound by arithmetic."""
    for rows, outputs, inputs in ((6, 1024, 1024), (32, 1024, 1024), (256, 512, 2048)):
        x, weight = torch.randn(rows, inputs), torch.randn(outputs, inputs) / inputs**0.5
        narrow_x, narrow = x.to(BF16), weight.to(BF16)
        wide_layer, layer, work = Linear(weight), Linear(narrow), 2.0 * rows * outputs * inputs
        cases: dict[str, Case] = {
            "torch fp32": (one(lambda x=x, w=weight: functional.linear(x, w)), work),  # type: ignore[misc]
            "torch bf16": (one(lambda x=narrow_x, w=narrow: functional.linear(x, w)), work),  # type: ignore[misc]
            "Linear fp32, fp32 weights": (one(lambda x=x, f=wide_layer: f(x)), work),  # type: ignore[misc]
            "Linear fp32, bf16 weights": (one(lambda x=x, f=layer: f(x)), work),  # type: ignore[misc]
            "Linear bf16, bf16 weights": (one(lambda x=narrow_x, f=layer: f(x)), work),  # type: ignore[misc]
        }
        title = f"{rows} rows x {inputs} -> {outputs}, {threads} threads"
        report(title, cases, "torch fp32", "GFLOP/s", 1e9, seconds)


def attention(seconds: float, threads: int) -> None:
    """One row of a long context (bound by reading it) and a prefill (bound by arithmetic)."""
    heads, kv_heads, d, context = 32, 8, 128, 4096
    op = Attention(heads, kv_heads, d, d, d**-0.5)
    memory = alloc_huge(16 * context * kv_heads * d * 2)
    memory.view(BF16).normal_()
    arenas = memory.view(BF16).view(8, 2, context, kv_heads, d)
    size = (context - 1) * kv_heads * d * 2 * 2
    qkv, angle = torch.randn(1, (heads + 2 * kv_heads) * d).to(BF16), torch.rand(1, d // 2)
    rows = Rows(torch.tensor([0]), torch.tensor([context - 1]), ((0, 1, 0, context - 1),))
    cases: dict[str, Case] = {
        "stream": stream_case(memory, size // 64 * 64, threads),
        "Attention": (lambda i: op(qkv, angle.cos(), angle.sin(), rows, arenas[i % 8, 0], arenas[i % 8, 1]), size),
    }
    report(f"attention of 1 row over {context} keys, 32/8 heads of 128, bf16, {threads} threads", cases, "stream",
           "GB/s", 1e9, seconds)  # fmt: skip
    num = 512
    op = Attention(8, 2, d, 0, d**-0.5)
    qkv = torch.randn(num, 12 * d)
    k_cache, v_cache = torch.randn(num, 2, d), torch.randn(num, 2, d)
    rows = Rows(torch.zeros(num, dtype=torch.int64), torch.arange(num), ((0, num, 0, 0),))
    q, k, v = (t.transpose(0, 1)[None] for t in torch.split(qkv.view(num, 12, d), [8, 2, 2], 1))
    work = 2.0 * 8 * d * num * num  # the causal half of two products
    cases = {
        "torch sdpa": (
            one(lambda: functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)),
            work,
        ),
        "Attention": (one(lambda: op(qkv, None, None, rows, k_cache, v_cache)), work),
    }
    report(f"prefill of {num} rows, 8/2 heads of 128, fp32, {threads} threads", cases, "torch sdpa", "GFLOP/s", 1e9,
           seconds)  # fmt: skip


def small_layer(seconds: float, threads: int) -> None:
    """The built-in model's shapes at batch 1: bound by calls."""
    dim, ffn, num, k, d = 192, 48, 64, 8, 32
    norm, x = RMSNorm(torch.rand(dim), 1e-6), torch.randn(1, dim)
    qkv, out, router, head = (Linear((torch.randn(n, dim) / 14).to(BF16)) for n in (320, dim, num, 4096))
    qkv = Linear(qkv.weight, norm=norm)
    op = Attention(6, 2, d, d, d**-0.5, None, RMSNorm(torch.rand(d), 1e-6), RMSNorm(torch.rand(d), 1e-6))
    table = ExpertTable(num, dim, ffn)
    for slot in range(num):
        table.set(slot, ExpertTensors(*((torch.randn(*s) / 10).to(BF16) for s in ((ffn, dim), (ffn, dim), (dim, ffn)))))
    k_cache, v_cache, angle = torch.randn(400, 2, d), torch.randn(400, 2, d), torch.rand(1, d // 2)
    cos, sin = angle.cos(), angle.sin()
    rows = Rows(torch.tensor([0]), torch.tensor([200]), ((0, 1, 0, 200),))
    heads = op(qkv(x), cos, sin, rows, k_cache, v_cache)
    ids, weights = topk_softmax(router(x), k, True)

    def layer() -> Tensor:
        h = out(op(qkv(x), cos, sin, rows, k_cache, v_cache), x)
        y = norm(h)
        chosen, shares = topk_softmax(router(y), k, True)
        return moe(y, chosen, chosen, shares, table, h)

    calls: dict[str, Callable[[], object]] = {
        "norm": lambda: norm(x),
        "qkv, with norm": lambda: qkv(x),
        "attention, 200 keys": lambda: op(qkv_x, cos, sin, rows, k_cache, v_cache),
        "output, with residual": lambda: out(heads, x),
        "router": lambda: router(x),
        "topk": lambda: topk_softmax(logits, k, True),
        "moe": lambda: moe(x, ids, ids, weights, table, x),
        "the layer": layer,
        "head, 4096": lambda: head(x),
    }
    qkv_x, logits = qkv(x), router(x)
    times = take_turns({name: (one(call), 1.0) for name, call in calls.items()}, seconds)
    print(f"\nbuilt-in model's layer at batch 1, fp32 with bf16 weights, {threads} threads")
    for name, values in times.items():
        print(f"  {name:28s} best {values[0] * 1e6:8.1f}  median {values[len(values) // 2] * 1e6:8.1f} us")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="per group")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, torch.get_num_threads()])
    args = parser.parse_args()
    load = os.getloadavg()[0]
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, load {load:.1f}, "
          f"torch {torch.__version__}, kernels {native.describe()}")  # fmt: skip
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rebuilt(args.seconds)
    for threads in sorted(set(args.threads)):
        torch.set_num_threads(threads)
        small_layer(args.seconds, threads)
        weights_read_once(args.seconds, threads)
        attention(args.seconds, threads)
        products(args.seconds, threads)


if __name__ == "__main__":
    main()
