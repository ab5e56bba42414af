"""`python -m smoe` is the `smoe` command."""

from smoe.cli.app import main

if __name__ == "__main__":
    main()
