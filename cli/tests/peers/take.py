"""Takes a lock with a library for Python: take.py URL LIBRARY KEY."""

import sys
from importlib.metadata import version

import redis

url, library, key = sys.argv[1:]
client = redis.Redis.from_url(url)
if library == "redis":
    taken = client.lock(key, timeout=60, thread_local=False).acquire(blocking=False)
elif library == "python-redis-lock":
    import redis_lock

    taken = redis_lock.Lock(client, key, expire=60).acquire(blocking=False)
elif library == "redlock-py":
    import redlock

    taken = redlock.Redlock([url], retry_count=1).lock(key, 60000)
else:
    import pottery

    taken = pottery.Redlock(key=key, masters={client}, auto_release_time=60).acquire(blocking=False)
print(library, version(library), "taken" if taken else "busy")
