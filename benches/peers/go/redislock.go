package main

import (
	"context"
	"errors"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"
)

// redislockLock is bsm/redislock. By default it does not wait; its first example that waits asks
// every 100 ms, and so does this.
type redislockLock struct {
	locks *redislock.Client
	lease time.Duration
}

func openRedislock(client *redis.Client, lease time.Duration) redislockLock {
	return redislockLock{redislock.New(client), lease}
}

// lock takes a lock. Without a deadline of the caller, redislock gives up after a lease, and is then
// asked again.
func (l redislockLock) lock(key string, limit context.Context) (lock *redislock.Lock, gaveUp int, err error) {
	options := redislock.Options{RetryStrategy: redislock.LinearBackoff(100 * time.Millisecond)}
	gaveUp, err = insist(limit, func(err error) bool {
		return errors.Is(err, redislock.ErrNotObtained) || errors.Is(err, context.DeadlineExceeded)
	}, func(limit context.Context) error {
		lock, err = l.locks.Obtain(limit, key, l.lease, &options)
		return err
	})
	return lock, gaveUp, err
}

func (l redislockLock) turn(key string, inside func()) (int, error) {
	lock, gaveUp, err := l.lock(key, context.Background())
	if err != nil {
		return gaveUp, err
	}
	inside()
	return gaveUp, lock.Release(context.Background())
}

func (l redislockLock) take(key string, wait time.Duration) (held, error) {
	limit, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	lock, _, err := l.lock(key, limit)
	if err == nil {
		return redislockHeld{lock}, nil
	}
	if limit.Err() != nil {
		return nil, nil
	}
	return nil, err
}

type redislockHeld struct{ lock *redislock.Lock }

// still asks Redis for the time that is left, as the README does.
func (h redislockHeld) still() (yes, known bool) {
	left, err := h.lock.TTL(context.Background())
	return left > 0, err == nil
}

func (h redislockHeld) release() string {
	err := h.lock.Release(context.Background())
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, redislock.ErrLockNotHeld):
		return "lost"
	}
	return "unknown"
}
