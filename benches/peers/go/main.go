// The locks in Go, as workers of the benchmark: they speak the protocol of ../src/protocol.rs. All have
// the same lease; each file says what else is not at its default.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

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
	sayAt("asks", "")
	held, err := l.take(key, wait)
	switch {
	case err != nil:
		sayAt("failed", strings.ReplaceAll(err.Error(), "\n", " "))
		return
	case held == nil:
		sayAt("busy", "")
		return
	}
	sayAt("has", "")
	end := time.Now().Add(work)
	for {
		asked := now()
		yes, known := held.still()
		if known && !yes {
			sayAt("no", "")
			break
		}
		if known {
			fmt.Println("yes", asked)
		}
		left := time.Until(end)
		if left <= 0 {
			break
		}
		time.Sleep(min(left, step))
	}
	sayAt("gives", "")
	sayAt("gave", held.release())
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
			for _, name := range []string{"/redsync/v4", "/go-redis/v9", "/redislock", "/rueidis"} {
				if strings.HasSuffix(module.Path, name) {
					line = append(line, module.Path+" "+module.Version)
				}
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
	lease, err := strconv.Atoi(os.Args[3])
	if err != nil {
		fmt.Println("failed", err)
		return
	}
	l, err := open(os.Args[2], os.Args[1], time.Duration(lease)*time.Millisecond)
	if err != nil {
		fmt.Println("failed", err)
		return
	}
	fmt.Println("ready")
	for input.Scan() {
		if err := obey(l, strings.Fields(input.Text())); err != nil {
			fmt.Println("failed", err)
		}
	}
}
