"""`make gpu-check`: tests and times every CUDA path; needs a GPU and takes less than ten minutes.

    python -m smoe.bench.gpu_check [--out benchmarks/results]

The engine computes on the CPU so far: copies into slots on the device are timed by themselves, beside matrix products,
and there is no offload figure of a GPU here.
"""

import argparse
import subprocess
import sys
from pathlib import Path

import torch

from smoe.bench.gpu import collectives, copies, experts, roofline, routing
from smoe.bench.result import Figure, Result, print_figures


def main() -> int:
    parser = argparse.ArgumentParser(prog="gpu-check", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"), help="folder of the result file")
    parser.add_argument("--quick", action="store_true", help="leave out the collectives")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("error: gpu-check: no CUDA device (one is needed)", file=sys.stderr)
        return 2
    tests = subprocess.run([sys.executable, "-m", "pytest", "-m", "gpu", "tests/gpu", "tests/kernels"], check=False)
    result = Result(name="gpu", config={"quick": args.quick})
    passed = tests.returncode == 0
    result.add(Figure(figure="tests of the CUDA paths", value=float(passed), unit="passed", goal="all", met=passed))
    device = torch.device("cuda")
    roofline.measure(device, result)
    copies.measure(device, result)
    routing.measure(device, result)
    experts.measure(device, result)
    if not args.quick:
        collectives.measure(device, result)
    print_figures(result.summary, torch.cuda.get_device_name(device))
    print(result.write(args.out))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
