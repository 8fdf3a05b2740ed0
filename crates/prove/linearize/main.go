// Judges whether a history of concurrent clients of a small map is linearizable. The judge is porcupine; here are only
// the map, the format of histories, and the search for the shortest part of a history that is wrong already.
//
//	linearize [-timeout 30s] HISTORY
//
// A history is a file of JSON lines. The first is {"keys": 6, "start": [0, …]}: how many keys there are and their values
// (0 is "no value"). Each other line is an operation:
//
//	{"client": 1, "call": 17, "return": 21, "kind": "write", "keys": [0, 3], "values": [8, 9]}
//
// Times are the order of events, each different. The kinds: `write` sets all its keys at one moment, `read` saw all its
// keys at one moment, `perhaps` is a write whose client died before the answer came: it happened by its return, or never.
// A conditional write has "saw_keys" and "saw", too: at its moment, these keys had these values. A `perhaps_pop` is a pop
// without an answer: it removed the first of its keys that had a value, by its return, or never.
//
// Exit codes: 0 linearizable, 1 not, 2 undecided in time, 3 the history makes no sense.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"sort"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

const keysMax = 8

// How many operations before the breach a report shows.
const shown = 24

type state [keysMax]int64

type header struct {
	Keys  int     `json:"keys"`
	Start []int64 `json:"start"`
}

type operation struct {
	Client int     `json:"client"`
	Call   int64   `json:"call"`
	Return int64   `json:"return"`
	Kind   string  `json:"kind"`
	Keys   []int   `json:"keys"`
	Values []int64 `json:"values"`

	SawKeys []int   `json:"saw_keys"`
	Saw     []int64 `json:"saw"`
}

func (o operation) writes() bool { return o.Kind != "read" }

func (o operation) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%6d to %6d  client %d  %-11s", o.Call, o.Return, o.Client, o.Kind)
	for i, key := range o.Keys {
		fmt.Fprintf(&b, " k%d=%d", key, o.Values[i])
	}
	for i, key := range o.SawKeys {
		fmt.Fprintf(&b, " after k%d=%d", key, o.Saw[i])
	}
	return b.String()
}

func (o operation) set(s state) state {
	for i, key := range o.Keys {
		s[key] = o.Values[i]
	}
	return s
}

func (s state) has(keys []int, values []int64) bool {
	for i, key := range keys {
		if s[key] != values[i] {
			return false
		}
	}
	return true
}

func model(start state) porcupine.Model {
	m := porcupine.NondeterministicModel{
		Init: func() []interface{} { return []interface{}{start} },
		Step: func(s, input, _ interface{}) []interface{} {
			before, o := s.(state), input.(operation)
			holds := before.has(o.SawKeys, o.Saw)
			switch o.Kind {
			case "write":
				if holds {
					return []interface{}{o.set(before)}
				}
				return nil
			case "perhaps_pop":
				for _, key := range o.Keys {
					if before[key] != 0 {
						after := before
						after[key] = 0
						return []interface{}{before, after}
					}
				}
				return []interface{}{before}
			case "perhaps":
				if holds {
					return []interface{}{before, o.set(before)}
				}
				return []interface{}{before}
			default:
				if before.has(o.Keys, o.Values) {
					return []interface{}{before}
				}
				return nil
			}
		},
		Hash: func(s interface{}) uint64 {
			hash := uint64(14695981039346656037)
			for _, value := range s.(state) {
				hash = (hash ^ uint64(value)) * 1099511628211
			}
			return hash
		},
	}
	return m.ToModel()
}

func judge(start state, operations []operation, timeout time.Duration) porcupine.CheckResult {
	history := make([]porcupine.Operation, len(operations))
	for i, o := range operations {
		history[i] = porcupine.Operation{ClientId: o.Client, Input: o, Call: o.Call, Return: o.Return}
	}
	return porcupine.CheckOperationsTimeout(model(start), history, timeout)
}

// What was known of a history at a time: later calls are not there, reads that are under way say nothing yet, and writes
// that are under way have happened or not.
func until(operations []operation, at int64) []operation {
	var out []operation
	for _, o := range operations {
		if o.Call > at || (o.Return > at && !o.writes()) {
			continue
		}
		if o.Return > at {
			o.Return = at + 1
			if o.Kind == "write" {
				o.Kind = "perhaps"
			}
		}
		out = append(out, o)
	}
	return out
}

// The shortest beginning that is not linearizable, without the reads that it is not linearizable without.
func shortest(start state, operations []operation, timeout time.Duration) []operation {
	illegal := func(part []operation) bool { return judge(start, part, timeout) == porcupine.Illegal }
	var times []int64
	for _, o := range operations {
		times = append(times, o.Return)
	}
	sort.Slice(times, func(i, j int) bool { return times[i] < times[j] })
	at := sort.Search(len(times)-1, func(i int) bool { return illegal(until(operations, times[i])) })
	part := until(operations, times[at])
	for i := len(part) - 1; i >= 0; i-- {
		if part[i].writes() {
			continue
		}
		fewer := append(append([]operation{}, part[:i]...), part[i+1:]...)
		if illegal(fewer) {
			part = fewer
		}
	}
	sort.Slice(part, func(i, j int) bool { return part[i].Return < part[j].Return })
	return part
}

func parse(file io.Reader) (state, []operation, error) {
	var start state
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	var head header
	if !lines.Scan() {
		return start, nil, fmt.Errorf("an empty history")
	}
	if err := json.Unmarshal(lines.Bytes(), &head); err != nil {
		return start, nil, fmt.Errorf("the first line: %w", err)
	}
	if head.Keys < 1 || head.Keys > keysMax || len(head.Start) != head.Keys {
		return start, nil, fmt.Errorf("%d keys, %d values of them", head.Keys, len(head.Start))
	}
	copy(start[:], head.Start)
	var operations []operation
	for number := 2; lines.Scan(); number++ {
		var o operation
		if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
			return start, nil, fmt.Errorf("line %d: %w", number, err)
		}
		known := o.Kind == "write" || o.Kind == "read" || o.Kind == "perhaps" || o.Kind == "perhaps_pop"
		if !known || o.Return <= o.Call || len(o.Keys) != len(o.Values) || len(o.SawKeys) != len(o.Saw) {
			return start, nil, fmt.Errorf("line %d makes no sense: %v", number, o)
		}
		for _, key := range append(append([]int{}, o.Keys...), o.SawKeys...) {
			if key < 0 || key >= head.Keys {
				return start, nil, fmt.Errorf("line %d: no key %d", number, key)
			}
		}
		operations = append(operations, o)
	}
	return start, operations, lines.Err()
}

func run() int {
	timeout := flag.Duration("timeout", 30*time.Second, "how long one search may take")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Println("linearize [-timeout 30s] HISTORY")
		return 3
	}
	file, err := os.Open(flag.Arg(0))
	if err != nil {
		fmt.Println(err)
		return 3
	}
	defer file.Close()
	start, operations, err := parse(file)
	if err != nil {
		fmt.Println(err)
		return 3
	}
	switch judge(start, operations, *timeout) {
	case porcupine.Ok:
		fmt.Printf("linearizable: %d operations\n", len(operations))
		return 0
	case porcupine.Unknown:
		fmt.Printf("undecided after %v: %d operations\n", *timeout, len(operations))
		return 2
	}
	part := shortest(start, operations, *timeout)
	fmt.Printf("not linearizable: %d operations, the shortest part %d; it began with %v, and its end is\n",
		len(operations), len(part), start)
	for _, o := range part[max(0, len(part)-shown):] {
		fmt.Println(o)
	}
	return 1
}

func main() { os.Exit(run()) }
