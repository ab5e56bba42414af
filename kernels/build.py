"""`python -m smoe.kernels.build`: rebuilds the committed CPU library (see cpu/build.py)."""

from smoe.kernels.cpu.build import main

if __name__ == "__main__":
    main()
