// Command histories reads a history of calls, a JSON object a line, and says of each object whether there is an order of
// its calls that explains all answers: each call has its effect at one moment between its beginning and its end.
//
// A call without an end is one whose outcome nobody knows: it has its effect at any moment since, or never.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"sort"
	"time"

	"github.com/anishathalye/porcupine"
)

const timeout = 20 * time.Second

// Call is a line of the history. Value is what is added, removed, looked for or set; Result is what the answer says.
type Call struct {
	Object string `json:"object"`
	Kind   string `json:"kind"`
	Client int    `json:"client"`
	Begin  int64  `json:"begin"`
	End    *int64 `json:"end"`
	Action string `json:"action"`
	Value  int    `json:"value"`
	Result string `json:"result"`
	Values []int  `json:"values"`
}

func (call Call) isKnown() bool { return call.End != nil }
func (call Call) isDone() bool  { return call.Result == "done" }

// set is a set of numbers below 64: the rows of a table, or whether a name, a grant or a key is there (with one number).
//
// add, remove: always effective, but for an add that is refused. create: refused where it is there. drop: missing where it is not. read: which are there;
// list: the same, of rows that are there once, however often they were added.
var set = porcupine.Model{
	Init: func() interface{} { return uint64(0) },
	Step: func(state, input, output interface{}) (bool, interface{}) {
		before, call := state.(uint64), input.(Call)
		bit := uint64(1) << call.Value
		isThere := before&bit != 0
		switch call.Action {
		case "add":
			if call.isKnown() && !call.isDone() {
				return true, before
			}
			return true, before | bit
		case "remove":
			return true, before &^ bit
		case "create":
			return !call.isKnown() || call.isDone() != isThere, before | bit
		case "drop":
			return !call.isKnown() || call.isDone() == isThere, before &^ bit
		case "has":
			return (call.Result == "yes") == isThere, before
		case "read", "list":
			seen, isTwice := uint64(0), false
			for _, value := range call.Values {
				isTwice = isTwice || seen&(1<<value) != 0
				seen |= 1 << value
			}
			return seen == before && !(isTwice && call.Action == "list"), before
		}
		panic("unknown action: " + call.Action)
	},
}

// register is a value that is there or not (0): the version of a tag. To create what is there already with this value may
// be answered as done, since a server cannot tell its own first try from another's; with another value it is refused.
var register = porcupine.Model{
	Init: func() interface{} { return 0 },
	Step: func(state, input, output interface{}) (bool, interface{}) {
		before, call := state.(int), input.(Call)
		after := before
		switch call.Action {
		case "create":
			if before == 0 {
				after = call.Value
			}
			mayBeDone := before == 0 || before == call.Value
			return !call.isKnown() || call.isDone() && mayBeDone || !call.isDone() && before != 0, after
		case "move":
			if before != 0 {
				after = call.Value
			}
			return !call.isKnown() || call.isDone() == (before != 0), after
		case "drop":
			return !call.isKnown() || call.isDone() == (before != 0), 0
		case "get":
			return call.Value == before, before
		}
		panic("unknown action: " + call.Action)
	},
}

// versions is the latest versions of some tables, which are 1 in the beginning. swap: each table of Values whose number is
// not 0 goes to it from the number before it, all of them or none. get: the version of the table Value is the one of Values.
var versions = porcupine.Model{
	Init: func() interface{} { return [2]int{1, 1} },
	Step: func(state, input, output interface{}) (bool, interface{}) {
		before, call := state.([2]int), input.(Call)
		switch call.Action {
		case "swap":
			isNext, after := true, before
			for table, version := range call.Values {
				if version != 0 {
					isNext = isNext && version == before[table]+1
					after[table] = version
				}
			}
			if !isNext {
				after = before
			}
			return !call.isKnown() || call.isDone() == isNext, after
		case "get":
			return call.Values[0] == before[call.Value], before
		}
		panic("unknown action: " + call.Action)
	},
}

var models = map[string]porcupine.Model{"set": set, "register": register, "versions": versions}

func main() {
	calls := map[string][]Call{}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var call Call
		if err := json.Unmarshal(lines.Bytes(), &call); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		calls[call.Object] = append(calls[call.Object], call)
	}
	names := make([]string, 0, len(calls))
	for name := range calls {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		operations := make([]porcupine.Operation, 0, len(calls[name]))
		for _, call := range calls[name] {
			end := int64(math.MaxInt64)
			if call.isKnown() {
				end = *call.End
			}
			operations = append(operations, porcupine.Operation{
				ClientId: call.Client, Input: call, Call: call.Begin, Output: nil, Return: end,
			})
		}
		model, isKnown := models[calls[name][0].Kind]
		if !isKnown {
			fmt.Fprintln(os.Stderr, "unknown kind: "+calls[name][0].Kind)
			os.Exit(2)
		}
		verdict := porcupine.CheckOperationsTimeout(model, operations, timeout)
		fmt.Printf("%s\t%s\t%d\n", name, verdict, len(operations))
	}
}
