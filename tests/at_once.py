"""The same action in several threads at the same time."""

import threading
from collections.abc import Callable


def run_at_once(count: int, do: Callable[[int], object]) -> None:
    """Call `do` with 0, 1, ... in `count` threads that begin together, and wait for all of them."""
    start = threading.Barrier(count)

    def begin(number: int) -> None:
        start.wait()
        do(number)

    threads = [threading.Thread(target=begin, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
