// SPDX-License-Identifier: Apache-2.0

package mapreduce

import (
	"encoding/json"
	"sync"

	"github.com/quernmr/quern/mapreduce/task"
)

// calls are the calls of Run, and of what stands in for it, of this process.
var calls struct {
	sync.Mutex
	ended []ended // by call
}

// ended is what a call came to.
type ended struct {
	result *Result
	err    error // both nil: it has not ended
}

// CountCall counts a call of Run that this process does not do itself: package cluster
// hands it to others, who come to it by its number when they run the same program. It
// returns that number, from 0, and what the calls before it have returned; and a
// function that is to be told what this one returns. Job.Run counts itself.
func CountCall() (call int, earlier []task.CallResult, done func(*Result, error)) {
	calls.Lock()
	defer calls.Unlock()
	call = len(calls.ended)
	for _, e := range calls.ended {
		earlier = append(earlier, e.callResult())
	}
	calls.ended = append(calls.ended, ended{})
	return call, earlier, func(result *Result, err error) {
		calls.Lock()
		defer calls.Unlock()
		calls.ended[call] = ended{result, err}
	}
}

// CallResult is what a program is told that is to return from Run what Run returned elsewhere.
func CallResult(result *Result, err error) task.CallResult { return ended{result, err}.callResult() }

func (e ended) callResult() task.CallResult {
	switch {
	case e.err != nil:
		return task.CallResult{Error: e.err.Error()}
	case e.result == nil:
		return task.CallResult{Error: "that job had not ended when a later one was submitted"}
	}
	b, err := json.Marshal(e.result)
	if err != nil {
		return task.CallResult{Error: err.Error()}
	}
	return task.CallResult{Result: b}
}
