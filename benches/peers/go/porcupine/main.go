// Porcupine's opinion of the histories of `peers trust`: whether they are linearizable, if a trusted
// hold is what counts. Prints a line for each: the file, and Ok, Illegal or Unknown. Draws a picture
// of those that are illegal.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// line is what ../../src/trust/history.rs writes, as far as it matters here.
type line struct {
	Trusted *int64 `json:"trusted"`
	Turn    struct {
		Worker int    `json:"worker"`
		Key    string `json:"key"`
		Asks   int64  `json:"asks"`
		Has    int64  `json:"has"`
		Gave   int64  `json:"gave"`
		Died   int64  `json:"died"`
	} `json:"turn"`
}

// step is the beginning or the end of a hold.
type step struct {
	key   string
	hold  int
	takes bool
}

// model is a lock for each key. Its state is the hold that has it, or 0.
var model = porcupine.Model{
	Init: func() any { return 0 },
	Partition: func(all []porcupine.Operation) [][]porcupine.Operation {
		keys := map[string]int{}
		var parts [][]porcupine.Operation
		for _, one := range all {
			key := one.Input.(step).key
			if _, known := keys[key]; !known {
				keys[key] = len(parts)
				parts = append(parts, nil)
			}
			parts[keys[key]] = append(parts[keys[key]], one)
		}
		return parts
	},
	Step: func(state, input, _ any) (bool, any) {
		it := input.(step)
		if it.takes {
			return state == 0, it.hold
		}
		return state == it.hold, 0
	},
	DescribeOperation: func(input, _ any) string {
		if it := input.(step); it.takes {
			return fmt.Sprint("takes ", it.key, ", hold ", it.hold)
		}
		return fmt.Sprint("trusts no more, hold ", input.(step).hold)
	},
	DescribeState: func(state any) string { return fmt.Sprint("hold ", state) },
}

// read makes two operations of each hold. A lock call that returned without the lock proves nothing.
func read(path string) ([]porcupine.Operation, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var all []porcupine.Operation
	lines := bufio.NewScanner(file)
	for number := 1; lines.Scan(); number++ {
		var it line
		if err := json.Unmarshal(lines.Bytes(), &it); err != nil {
			return nil, err
		}
		if it.Trusted == nil {
			continue
		}
		turn, trusted := it.Turn, *it.Trusted
		took := step{turn.Key, number, true}
		all = append(all,
			porcupine.Operation{ClientId: turn.Worker, Input: took, Call: turn.Asks, Return: turn.Has},
			porcupine.Operation{
				ClientId: turn.Worker,
				Input:    step{turn.Key, number, false},
				Call:     trusted,
				Return:   max(trusted, turn.Gave, turn.Died) + 1,
			})
	}
	return all, lines.Err()
}

func main() {
	paths, _ := filepath.Glob(filepath.Join(os.Args[1], "*.jsonl"))
	for _, path := range paths {
		all, err := read(path)
		if err != nil {
			fmt.Fprintln(os.Stderr, path, err)
			os.Exit(1)
		}
		verdict, info := porcupine.CheckOperationsVerbose(model, all, 20*time.Second)
		fmt.Println(filepath.Base(path), verdict)
		if verdict == porcupine.Illegal {
			if err := porcupine.VisualizePath(model, info, strings.TrimSuffix(path, "jsonl")+"html"); err != nil {
				fmt.Fprintln(os.Stderr, path, err)
			}
		}
	}
}
