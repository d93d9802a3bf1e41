"""The two Python locks, as workers of the benchmark.

Speaks the protocol of src/protocol.rs: `cycles` (one thread alone), `turns` (threads that take turns on one key) and
`pair` (one side of a hand-off between processes). All options of the locks are at their defaults, but for the lease, which is the same for
all peers. What Python itself costs is part of every figure.
"""

import argparse
import json
import sys
import threading
import time
from importlib import metadata

import redis
import redis_lock

LEASE = 30


def say(line):
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def hear():
    """The next line, or nothing at the end."""
    return sys.stdin.readline().strip()


class RedisPy:
    """The lock of redis-py itself: asks again every 100 ms."""

    def __init__(self, url):
        self.client = redis.Redis.from_url(url, socket_timeout=None)

    def turn(self, key, inside):
        lock = self.client.lock(key, timeout=LEASE)
        if not lock.acquire():
            raise RuntimeError("not acquired")
        inside()
        lock.release()


class PythonRedisLock:
    """The package python-redis-lock: waiters block in BLPOP, and a release pushes to the list."""

    def __init__(self, url):
        self.client = redis.StrictRedis.from_url(url, socket_timeout=None)

    def turn(self, key, inside):
        lock = redis_lock.Lock(self.client, key, expire=LEASE)
        if not lock.acquire():
            raise RuntimeError("not acquired")
        inside()
        lock.release()


LOCKS = {"redis-py": RedisPy, "python-redis-lock": PythonRedisLock}


class Room:
    """What only one thread may be in."""

    def __init__(self):
        self.door = threading.Lock()
        self.overlaps = 0

    def visit(self):
        if self.door.acquire(blocking=False):
            self.door.release()
        else:
            self.overlaps += 1


def take_turns(lock, order, room, turns):
    end = time.monotonic_ns() + int(order.seconds * 1e9)
    taken = 0

    def inside():
        nonlocal taken
        taken = time.monotonic_ns()
        room.visit()

    while True:
        asked = time.monotonic_ns()
        if asked >= end:
            return
        taken = 0
        try:
            lock.turn(order.key, inside)
        except Exception:
            turns["failures"] += 1
        if taken:
            turns["cycles"].append(time.monotonic_ns() - asked)
            turns["waits"].append(taken - asked)
            turns["in_time"] += taken <= end


def turns(order):
    lock = LOCKS[order.peer](order.url)
    ready = threading.Barrier(order.threads + 1)
    go = threading.Barrier(order.threads + 1)
    room = Room()
    tallies = [{"in_time": 0, "waits": [], "cycles": [], "gave_up": 0, "failures": 0} for _ in range(order.threads)]

    def each(number):
        try:
            # So that opening connections is no part of it.
            lock.turn(f"{order.key}:{number}", lambda: None)
        except Exception:
            tallies[number]["failures"] += 1
        ready.wait()
        go.wait()
        take_turns(lock, order, room, tallies[number])

    threads = [threading.Thread(target=each, args=(number,)) for number in range(order.threads)]
    for thread in threads:
        thread.start()
    ready.wait()
    say("ready")
    hear()
    go.wait()
    for thread in threads:
        thread.join()
    say(json.dumps({"threads": tallies, "overlaps": room.overlaps}))


def cycles(order):
    lock = LOCKS[order.peer](order.url)
    lock.turn(order.key, lambda: None)
    say("ready")
    while hear():
        tally = {"in_time": 0, "waits": [], "cycles": [], "gave_up": 0, "failures": 0}
        take_turns(lock, order, Room(), tally)
        say(json.dumps({"threads": [tally], "overlaps": 0}))


def take(lock, key):
    gave = 0

    def inside():
        nonlocal gave
        say("held")
        hear()
        gave = time.monotonic_ns()

    lock.turn(key, inside)
    return f"gave {gave}"


def wait(lock, key):
    got = 0

    def inside():
        nonlocal got
        got = time.monotonic_ns()

    say("waiting")
    lock.turn(key, inside)
    return f"got {got}"


def pair(order):
    lock = LOCKS[order.peer](order.url)
    lock.turn(f"{order.key}:warm", lambda: None)
    say("ready")
    while command := hear():
        try:
            say({"take": take, "wait": wait}[command](lock, order.key))
        except Exception as error:
            say(f"failed {error!r}")


def versions(_order):
    names = ("redis", "python-redis-lock")
    say(json.dumps({"python": sys.version.split()[0]} | {name: metadata.version(name) for name in names}))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", choices=("cycles", "turns", "pair", "versions"))
    parser.add_argument("--url")
    parser.add_argument("--peer", choices=LOCKS)
    parser.add_argument("--key")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float)
    order = parser.parse_args()
    {"cycles": cycles, "turns": turns, "pair": pair, "versions": versions}[order.work](order)


if __name__ == "__main__":
    main()
