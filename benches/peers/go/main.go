// The lock redsync, as a worker of the benchmark: it speaks the protocol of ../src/protocol.rs. All
// options of the lock are at their defaults, except for the lease, which is the same for all peers.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sys/unix"
)

var input = bufio.NewScanner(os.Stdin)

// clock reads a clock of the system, in nanoseconds. CLOCK_MONOTONIC is the same in all processes.
func clock(id int32) int64 {
	var now unix.Timespec
	if err := unix.ClockGettime(id, &now); err != nil {
		panic(err)
	}
	return now.Nano()
}

func now() int64 { return clock(unix.CLOCK_MONOTONIC) }
func cpu() int64 { return clock(unix.CLOCK_PROCESS_CPUTIME_ID) }

// lock is shared by the goroutines of the worker.
type lock struct {
	locks *redsync.Redsync
	lease time.Duration
}

// turn takes the lock, calls inside, and releases the lock. redsync gives up after 32 tries. turn
// then tries again, and returns how often redsync gave up.
func (l lock) turn(key string, inside func()) (int, error) {
	mutex := l.locks.NewMutex(key, redsync.WithExpiry(l.lease))
	gaveUp := 0
	for {
		err := mutex.Lock()
		var taken *redsync.ErrTaken
		if err == nil {
			break
		}
		if !errors.Is(err, redsync.ErrFailed) && !errors.As(err, &taken) {
			return gaveUp, err
		}
		gaveUp++
	}
	inside()
	released, err := mutex.Unlock()
	if err == nil && !released {
		err = errors.New("the lock was lost")
	}
	return gaveUp, err
}

// turns is what one goroutine did.
type turns struct {
	InTime   int     `json:"in_time"`
	Waits    []int64 `json:"waits"`
	Cycles   []int64 `json:"cycles"`
	GaveUp   int     `json:"gave_up"`
	Failures int     `json:"failures"`
}

type tally struct {
	Threads  []turns `json:"threads"`
	Overlaps int64   `json:"overlaps"`
	CPU      int64   `json:"cpu"`
}

func takeTurns(l lock, key string, seconds float64, taken *atomic.Bool, overlaps *atomic.Int64, done *turns) {
	end := now() + int64(seconds*1e9)
	for {
		asked := now()
		if asked >= end {
			return
		}
		got := int64(0)
		gaveUp, err := l.turn(key, func() {
			got = now()
			if taken.Swap(true) {
				overlaps.Add(1)
			}
			taken.Store(false)
		})
		done.GaveUp += gaveUp
		if err != nil {
			done.Failures++
		}
		if got != 0 {
			done.Cycles = append(done.Cycles, now()-asked)
			done.Waits = append(done.Waits, got-asked)
			if got <= end {
				done.InTime++
			}
		}
	}
}

func together(l lock, key string, threads int, seconds float64) error {
	done := tally{Threads: make([]turns, threads)}
	for number := range done.Threads {
		done.Threads[number] = turns{Waits: []int64{}, Cycles: []int64{}}
	}
	var ready, end sync.WaitGroup
	begin := make(chan struct{})
	var taken atomic.Bool
	var overlaps atomic.Int64
	for number := range done.Threads {
		ready.Add(1)
		end.Add(1)
		go func() {
			defer end.Done()
			// This turn opens the connections before the clock starts.
			if _, err := l.turn(fmt.Sprintf("%s:%d", key, number), func() {}); err != nil {
				done.Threads[number].Failures++
			}
			ready.Done()
			<-begin
			takeTurns(l, key, seconds, &taken, &overlaps, &done.Threads[number])
		}()
	}
	ready.Wait()
	fmt.Println("ready")
	input.Scan()
	used := cpu()
	close(begin)
	end.Wait()
	done.CPU = cpu() - used
	done.Overlaps = overlaps.Load()
	line, err := json.Marshal(done)
	if err == nil {
		fmt.Println(string(line))
	}
	return err
}

func sayAt(word, detail string) {
	fmt.Println(strings.TrimSpace(fmt.Sprint(word, " ", now(), " ", detail)))
}

// hold takes the lock, works, and asks now and then whether the lock is still held.
func hold(l lock, key string, wait, work, step time.Duration) {
	mutex := l.locks.NewMutex(key, redsync.WithExpiry(l.lease))
	limit, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	sayAt("asks", "")
	for {
		err := mutex.LockContext(limit)
		var taken *redsync.ErrTaken
		if err == nil {
			break
		}
		if limit.Err() != nil {
			sayAt("busy", "")
			return
		}
		if !errors.Is(err, redsync.ErrFailed) && !errors.As(err, &taken) {
			sayAt("failed", strings.ReplaceAll(err.Error(), "\n", " "))
			return
		}
	}
	sayAt("has", "")
	end := time.Now().Add(work)
	for {
		asked := now()
		if !time.Now().Before(mutex.Until()) {
			sayAt("no", "")
			break
		}
		fmt.Println("yes", asked)
		left := time.Until(end)
		if left <= 0 {
			break
		}
		time.Sleep(min(left, step))
	}
	sayAt("gives", "")
	released, err := mutex.Unlock()
	var taken *redsync.ErrTaken
	switch {
	case released:
		sayAt("gave", "ok")
	case errors.Is(err, redsync.ErrLockAlreadyExpired) || errors.As(err, &taken):
		sayAt("gave", "lost")
	default:
		sayAt("gave", "unknown")
	}
}

func obey(l lock, command []string) error {
	switch command[0] {
	case "turns":
		threads, err := strconv.Atoi(command[2])
		if err != nil {
			return err
		}
		seconds, err := strconv.ParseFloat(command[3], 64)
		if err != nil {
			return err
		}
		return together(l, command[1], threads, seconds)
	case "take":
		gave := int64(0)
		_, err := l.turn(command[1], func() {
			fmt.Println("held")
			input.Scan()
			gave = now()
		})
		if err == nil {
			fmt.Println("gave", gave)
		}
		return err
	case "wait":
		got := int64(0)
		fmt.Println("waiting")
		_, err := l.turn(command[1], func() { got = now() })
		if err == nil {
			fmt.Println("got", got)
		}
		return err
	case "hold":
		var spans [3]time.Duration
		for place := range spans {
			span, err := strconv.Atoi(command[2+place])
			if err != nil {
				return err
			}
			spans[place] = time.Duration(span) * time.Millisecond
		}
		hold(l, command[1], spans[0], spans[1], spans[2])
		return nil
	case "cpu":
		fmt.Println("cpu", cpu())
		return nil
	}
	return fmt.Errorf("unknown command: %v", command)
}

func versions() {
	line := []string{runtime.Version()}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, module := range info.Deps {
			if strings.Contains(module.Path, "/redsync/") || strings.Contains(module.Path, "/go-redis/") {
				line = append(line, module.Path+" "+module.Version)
			}
		}
	}
	fmt.Println(strings.Join(line, ", "))
}

func main() {
	if os.Args[1] == "versions" {
		versions()
		return
	}
	options, err := redis.ParseURL(os.Args[1])
	if err != nil {
		fmt.Println("failed", err)
		return
	}
	lease, err := strconv.Atoi(os.Args[3])
	if err != nil {
		fmt.Println("failed", err)
		return
	}
	locks := redsync.New(goredis.NewPool(redis.NewClient(options)))
	l := lock{locks, time.Duration(lease) * time.Millisecond}
	fmt.Println("ready")
	for input.Scan() {
		if err := obey(l, strings.Fields(input.Text())); err != nil {
			fmt.Println("failed", err)
		}
	}
}
