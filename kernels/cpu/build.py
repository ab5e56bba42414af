"""Rebuilds the CPU library from the C sources beside this file: `python -m smoe.kernels.build`.

The result is committed, so that users need no compiler. A hash of the sources is compiled in; a test compares it.
"""

import argparse
import hashlib
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIBRARY = HERE / "lib" / "libsmoe_cpu_x86_64.so"
OPERATIONS = ("norm", "linear", "attention", "moe", "topk", "route", "mla", "delta", "quantise", "residual", "stream")
VARIANT_SOURCES = ("dot.c", "int4.c", "int8.c", *(f"{name}.c" for name in OPERATIONS))
VARIANTS = {
    "avx2": ("-mavx2", "-mfma"),
    "avx512": ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx2", "-mfma", "-DVARIANT_AVX512"),
}
# The loops worth vectorising are written with intrinsics; vectorising the rest only makes the library larger.
FLAGS = ("-std=gnu11", "-O3", "-fno-tree-vectorize", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror")


def source_hash() -> str:
    """Hash of every file that decides what the library holds, this one included."""
    digest = hashlib.sha256()
    for path in sorted([*HERE.glob("*.c"), *HERE.glob("*.h"), HERE / "build.py"]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:32]


def library_hash(path: Path = LIBRARY) -> str:
    """The hash that was compiled into a library."""
    marker = b"smoe-source-hash:"
    content = path.read_bytes()
    start = content.index(marker) + len(marker)
    return content[start : content.index(b"\0", start)].decode()


def build(output: Path = LIBRARY, compiler: str = "gcc") -> None:
    """Compiles every operation once per instruction set and the runtime once, and links them."""
    with tempfile.TemporaryDirectory() as folder:
        jobs: list[tuple[subprocess.Popen[bytes], str]] = []
        objects: list[str] = []

        def compile_one(source: str, tag: str, *flags: str) -> None:
            target = str(Path(folder) / f"{Path(source).stem}.{tag}.o")
            command = [compiler, *FLAGS, *flags, "-c", str(HERE / source), "-o", target]
            jobs.append((subprocess.Popen(command), source))
            objects.append(target)

        compile_one("runtime.c", "base", f'-DSOURCE_HASH="{source_hash()}"')
        for name, flags in VARIANTS.items():
            for source in VARIANT_SOURCES:
                compile_one(source, name, *flags)
        failed = [source for job, source in jobs if job.wait() != 0]
        if failed:
            raise SystemExit(f"does not compile: {', '.join(sorted(set(failed)))}")
        output.parent.mkdir(exist_ok=True)
        # Replaced as a whole: processes that run on the one that is there keep it.
        partial = output.with_suffix(".partial")
        subprocess.run(
            [compiler, "-shared", "-s", "-Wl,--build-id=none", "-o", str(partial), *objects, "-lm"], check=True
        )
        partial.replace(output)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=LIBRARY)
    parser.add_argument("--compiler", default="gcc")
    args = parser.parse_args()
    build(args.output, args.compiler)
    print(f"{args.output}: {args.output.stat().st_size} bytes, sources {source_hash()}")


if __name__ == "__main__":
    main()
