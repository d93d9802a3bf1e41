package main

import (
	"context"
	"strings"
	"time"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

// rueidislockLock is rueidislock over one server. All options are at their defaults, except for the
// lease, and for NoLoopTracking: its README recommends that since Redis 7.0.5, so there is one with it
// and one without.
type rueidislockLock struct{ locks rueidislock.Locker }

func openRueidislock(url string, noLoop bool, lease time.Duration) (lock, error) {
	// It takes the slash at the end for the beginning of a database's number.
	options, err := rueidis.ParseURL(strings.TrimSuffix(url, "/"))
	if err != nil {
		return nil, err
	}
	locks, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption:   options,
		KeyMajority:    1,
		KeyValidity:    lease,
		NoLoopTracking: noLoop,
	})
	return rueidislockLock{locks}, err
}

func (l rueidislockLock) turn(key string, inside func()) (int, error) {
	_, cancel, err := l.locks.WithContext(context.Background(), key)
	if err != nil {
		return 0, err
	}
	inside()
	cancel()
	return 0, nil
}

// take ends the wait by cancelling its context. A deadline would stay with the hold, and end it.
func (l rueidislockLock) take(key string, wait time.Duration) (held, error) {
	limit, over := context.WithCancel(context.Background())
	timer := time.AfterFunc(wait, over)
	ctx, cancel, err := l.locks.WithContext(limit, key)
	switch {
	case timer.Stop() && err == nil:
		return rueidislockHeld{ctx, cancel}, nil
	case err == nil:
		cancel()
	}
	if limit.Err() != nil {
		return nil, nil
	}
	over()
	return nil, err
}

// rueidislockHeld is a hold, and its context, which is cancelled when the hold is over.
type rueidislockHeld struct {
	ctx    context.Context
	cancel context.CancelFunc
}

func (h rueidislockHeld) still() (yes, known bool) { return h.ctx.Err() == nil, true }

// release does not learn whether the key was still there.
func (h rueidislockHeld) release() string {
	h.cancel()
	return "nothing"
}
