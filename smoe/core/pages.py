"""Pages: what direct reads move, and where they begin."""

PAGE_BYTES = 4096


def whole_pages(nbytes: int) -> int:
    """`nbytes`, rounded up."""
    return -(-nbytes // PAGE_BYTES) * PAGE_BYTES
