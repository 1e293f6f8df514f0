// SPDX-License-Identifier: Apache-2.0

package mapreduce

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/quernmr/quern/mapreduce/task"
)

// maxCalls bounds the calls whose results are kept for later submissions.
const maxCalls = 1024

// calls are the calls of Run, and of what stands in for it, of this process.
var calls struct {
	sync.Mutex
	n     int
	ended [maxCalls]*ended // by call; nil: it has not ended
}

// ended is what a call came to.
type ended struct {
	result *Result
	err    error
}

// countCall counts a call of Run. The function that it returns is to be told what the call returns.
func countCall() (call int, done func(*Result, error)) {
	calls.Lock()
	defer calls.Unlock()
	call = calls.n
	calls.n++
	return call, func(result *Result, err error) {
		if call < maxCalls {
			calls.Lock()
			defer calls.Unlock()
			calls.ended[call] = &ended{result, err}
		}
	}
}

// CountCall counts a call of Run that this process does not do itself: package cluster
// hands it to others, who come to it by its number when they run the same program. It
// returns that number, from 0, and what the calls before it have returned; and a
// function that is to be told what this one returns. Job.Run counts itself.
func CountCall() (call int, earlier []task.CallResult, done func(*Result, error), err error) {
	call, done = countCall()
	if call > maxCalls {
		return 0, nil, nil, fmt.Errorf("this process has run %d jobs; others would have to be told the results of all: submit from one that has run at most %d", call, maxCalls)
	}
	calls.Lock()
	defer calls.Unlock()
	for _, e := range calls.ended[:call] {
		if e == nil {
			e = &ended{err: errNotEnded}
		}
		earlier = append(earlier, CallResult(e.result, e.err))
	}
	return call, earlier, done, nil
}

var errNotEnded = errors.New("that job had not ended when a later one was submitted")

// CallResult is what a program is told that is to return from Run what Run returned elsewhere.
func CallResult(result *Result, err error) task.CallResult {
	if err != nil {
		return task.CallResult{Error: err.Error(), Cause: CauseOf(err)}
	}
	b, err := json.Marshal(result)
	if err != nil {
		return task.CallResult{Error: err.Error()}
	}
	return task.CallResult{Result: b}
}
