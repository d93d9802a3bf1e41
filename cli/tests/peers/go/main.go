// Takes a lock with a library for Go: take URL LIBRARY KEY.
package main

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

func main() {
	url, which, key := os.Args[1], os.Args[2], os.Args[3]
	options, err := redis.ParseURL(url)
	if err != nil {
		panic(err)
	}
	client := redis.NewClient(options)
	ctx := context.Background()
	path := ""
	switch which {
	case "redsync":
		path = "github.com/go-redsync/redsync/v4"
		mutex := redsync.New(goredis.NewPool(client)).NewMutex(key, redsync.WithExpiry(time.Minute), redsync.WithTries(1))
		err = mutex.Lock()
	case "redislock":
		path = "github.com/bsm/redislock"
		_, err = redislock.New(client).Obtain(ctx, key, time.Minute, nil)
	case "rueidislock":
		path = "github.com/redis/rueidis"
		locker, e := rueidislock.NewLocker(rueidislock.LockerOption{
			ClientOption: rueidis.ClientOption{InitAddress: []string{options.Addr}},
			KeyMajority: 1, KeyValidity: time.Minute, NoLoopTracking: true,
		})
		if e != nil {
			panic(e)
		}
		_, _, err = locker.TryWithContext(ctx, key)
	}
	version := "?"
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			if dep.Path == path {
				version = dep.Version
			}
		}
	}
	if err == nil {
		fmt.Println(which, version, "taken")
	} else {
		fmt.Println(which, version, "busy:", err)
	}
}
