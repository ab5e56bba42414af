"""The worker's end of a contender: a process that answers JSON lines, its memory measured and bounded alone."""

import json
import os
import sys
from collections.abc import Callable
from typing import Any

Message = dict[str, Any]


def serve(handle: Callable[[Message], Message]) -> None:
    """Answers each line of standard input with one line. An exception is the last answer: its text, as `error`.

    Whatever else prints goes to standard error.
    """
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            answer = handle(json.loads(line))
        except Exception as error:
            print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=answers)
            raise
        print(json.dumps(answer), file=answers)
