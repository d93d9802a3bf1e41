package main

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

// lock is shared by the goroutines of the worker.
type lock interface {
	// turn takes the lock, calls inside, and releases the lock. Returns how often the lock gave up,
	// and was tried again.
	turn(key string, inside func()) (int, error)
	// take takes the lock. No hold, and no error, if it is still busy after wait.
	take(key string, wait time.Duration) (held, error)
}

// held is a lock that is held.
type held interface {
	// still says whether it is still held, as the lock says; known is false if it cannot say now.
	still() (yes, known bool)
	// release releases the lock, and returns the protocol's word for what the lock says of that.
	release() string
}

// open connects the peer, whose leases last for so long.
func open(peer, url string, lease time.Duration) (lock, error) {
	switch peer {
	case "rueidislock", "rueidislock-no-loop":
		return openRueidislock(url, peer == "rueidislock-no-loop", lease)
	}
	options, err := redis.ParseURL(url)
	if err != nil {
		return nil, err
	}
	client := redis.NewClient(options)
	switch peer {
	case "redsync":
		return openRedsync(client, lease), nil
	case "redislock":
		return openRedislock(client, lease), nil
	}
	return nil, errors.New("there is no worker for " + peer)
}

// insist calls try until it takes the lock or fails, or until the limit is over. Returns how often
// the lock was busy before.
func insist(limit context.Context, isBusy func(error) bool, try func(context.Context) error) (int, error) {
	for gaveUp := 0; ; gaveUp++ {
		err := try(limit)
		if err == nil || limit.Err() != nil || !isBusy(err) {
			return gaveUp, err
		}
	}
}
