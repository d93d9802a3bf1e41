"""The two Python locks, as workers of the benchmark: they speak the protocol of src/protocol.rs.

All options of the locks are at their defaults, except for the lease, which is the same for all peers. What Python
itself costs is part of every figure.
"""

import json
import sys
import threading
import time
from importlib import metadata

import redis
import redis_lock


def say(line):
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def hear():
    """The next line, or nothing at the end."""
    return sys.stdin.readline().strip()


class RedisPy:
    """The lock of redis-py itself: asks again every 100 ms."""

    def __init__(self, url, lease):
        self.client = redis.Redis.from_url(url, socket_timeout=None)
        self.lease = lease

    def turn(self, key, inside):
        lock = self.client.lock(key, timeout=self.lease)
        if not lock.acquire():
            raise RuntimeError("not acquired")
        inside()
        lock.release()

    def take(self, key, wait):
        lock = self.client.lock(key, timeout=self.lease, blocking_timeout=wait)
        return lock if lock.acquire() else None

    def still(self, lock):
        return lock.owned()

    lost = redis.exceptions.LockNotOwnedError


class PythonRedisLock:
    """The package python-redis-lock: waiters block in BLPOP, and a release pushes to the list."""

    def __init__(self, url, lease):
        self.client = redis.StrictRedis.from_url(url, socket_timeout=None)
        self.lease = lease

    def turn(self, key, inside):
        lock = redis_lock.Lock(self.client, key, expire=self.lease)
        if not lock.acquire():
            raise RuntimeError("not acquired")
        inside()
        lock.release()

    def take(self, key, wait):
        lock = redis_lock.Lock(self.client, key, expire=self.lease, auto_renewal=True)
        return lock if lock.acquire(timeout=wait) else None

    def still(self, lock):
        return lock.get_owner_id() == lock.id

    lost = redis_lock.NotAcquired


LOCKS = {"redis-py": RedisPy, "python-redis-lock": PythonRedisLock}


class Room:
    """Counts how often two threads are inside at the same time."""

    def __init__(self):
        self.door = threading.Lock()
        self.overlaps = 0

    def visit(self):
        if self.door.acquire(blocking=False):
            self.door.release()
        else:
            self.overlaps += 1


def take_turns(lock, key, seconds, room, turns):
    end = time.monotonic_ns() + int(seconds * 1e9)
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
            lock.turn(key, inside)
        except Exception:
            turns["failures"] += 1
        if taken:
            turns["cycles"].append(time.monotonic_ns() - asked)
            turns["waits"].append(taken - asked)
            turns["in_time"] += taken <= end


def together(lock, key, threads, seconds):
    ready = threading.Barrier(threads + 1)
    go = threading.Barrier(threads + 1)
    room = Room()
    tallies = [{"in_time": 0, "waits": [], "cycles": [], "gave_up": 0, "failures": 0} for _ in range(threads)]

    def each(number):
        try:
            # Opens the connections before the clock starts.
            lock.turn(f"{key}:{number}", lambda: None)
        except Exception:
            tallies[number]["failures"] += 1
        ready.wait()
        go.wait()
        take_turns(lock, key, seconds, room, tallies[number])

    running = [threading.Thread(target=each, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    ready.wait()
    say("ready")
    hear()
    cpu = time.process_time_ns()
    go.wait()
    for thread in running:
        thread.join()
    say(json.dumps({"threads": tallies, "overlaps": room.overlaps, "cpu": time.process_time_ns() - cpu}))


def take(lock, key):
    gave = 0

    def inside():
        nonlocal gave
        say("held")
        hear()
        gave = time.monotonic_ns()

    lock.turn(key, inside)
    say(f"gave {gave}")


def wait(lock, key):
    got = 0

    def inside():
        nonlocal got
        got = time.monotonic_ns()

    say("waiting")
    lock.turn(key, inside)
    say(f"got {got}")


def say_at(word, detail=""):
    say(f"{word} {time.monotonic_ns()} {detail}".rstrip())


def hold(lock, key, wait, work, step):
    say_at("asks")
    try:
        held = lock.take(key, wait)
    except Exception as error:
        return say_at("failed", repr(error).replace("\n", " "))
    if not held:
        return say_at("busy")
    say_at("has")
    end = time.monotonic() + work
    while True:
        asked = time.monotonic_ns()
        try:
            if not lock.still(held):
                say_at("no")
                break
            say(f"yes {asked}")
        except redis.RedisError:
            pass  # It cannot say now.
        left = end - time.monotonic()
        if left <= 0:
            break
        time.sleep(min(left, step))
    say_at("gives")
    try:
        held.release()
        said = "ok"
    except lock.lost:
        said = "lost"
    except Exception:
        said = "unknown"
    say_at("gave", said)


def obey(lock, command, *arguments):
    if command == "turns":
        key, threads, seconds = arguments
        together(lock, key, int(threads), float(seconds))
    elif command == "take":
        take(lock, *arguments)
    elif command == "wait":
        wait(lock, *arguments)
    elif command == "hold":
        key, *spans = arguments
        hold(lock, key, *(int(span) / 1000 for span in spans))
    elif command == "cpu":
        say(f"cpu {time.process_time_ns()}")
    else:
        raise ValueError(f"unknown command: {command}")


def main():
    if sys.argv[1] == "versions":
        packages = [f"{name} {metadata.version(name)}" for name in ("redis", "python-redis-lock")]
        say(", ".join([f"Python {sys.version.split()[0]}", *packages]))
        return
    url, peer, lease = sys.argv[1:]
    lock = LOCKS[peer](url, int(lease) / 1000)
    say("ready")
    while line := hear():
        try:
            obey(lock, *line.split())
        except Exception as error:
            say(f"failed {error!r}")


if __name__ == "__main__":
    main()
