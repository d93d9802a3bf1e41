package main

import (
	"context"
	"errors"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

// redsyncLock is redsync over one server. All options are at their defaults, except for the lease.
type redsyncLock struct {
	locks *redsync.Redsync
	lease time.Duration
}

func openRedsync(client *redis.Client, lease time.Duration) redsyncLock {
	return redsyncLock{redsync.New(goredis.NewPool(client)), lease}
}

// lock takes a lock. redsync gives up after 32 tries, and is then asked again.
func (l redsyncLock) lock(key string, limit context.Context) (redsyncHeld, int, error) {
	mutex := l.locks.NewMutex(key, redsync.WithExpiry(l.lease))
	gaveUp, err := insist(limit, func(err error) bool {
		return errors.Is(err, redsync.ErrFailed) || isTaken(err)
	}, mutex.LockContext)
	return redsyncHeld{mutex}, gaveUp, err
}

func isTaken(err error) bool {
	var taken *redsync.ErrTaken
	return errors.As(err, &taken)
}

func (l redsyncLock) turn(key string, inside func()) (int, error) {
	held, gaveUp, err := l.lock(key, context.Background())
	if err != nil {
		return gaveUp, err
	}
	inside()
	released, err := held.mutex.Unlock()
	if err == nil && !released {
		err = errors.New("the lock was lost")
	}
	return gaveUp, err
}

func (l redsyncLock) take(key string, wait time.Duration) (held, error) {
	limit, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	held, _, err := l.lock(key, limit)
	if err == nil {
		return held, nil
	}
	if limit.Err() != nil {
		return nil, nil
	}
	return nil, err
}

type redsyncHeld struct{ mutex *redsync.Mutex }

func (h redsyncHeld) still() (yes, known bool) { return time.Now().Before(h.mutex.Until()), true }

func (h redsyncHeld) release() string {
	released, err := h.mutex.Unlock()
	switch {
	case released:
		return "ok"
	case errors.Is(err, redsync.ErrLockAlreadyExpired) || isTaken(err):
		return "lost"
	}
	return "unknown"
}
