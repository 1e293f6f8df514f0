// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"slices"
	"testing"
	"time"

	"github.com/quernmr/quern/mapreduce/cluster/api"
	"github.com/quernmr/quern/mapreduce/task"
)

// keeping is an exchange that says what it holds, and calls after when it has looked.
type keeping struct {
	exchanger
	held  []*api.Held
	after func()
}

func (k *keeping) Held() []*api.Held {
	held := slices.Clone(k.held)
	if k.after != nil {
		k.after()
	}
	return held
}

// An output that is taken over while a worker says hello is not left out, nor said twice.
func TestHelloLeavesNothingOut(t *testing.T) {
	at := &api.Attempt{Job: "j", Stage: stageMap, Task: 3, Epoch: 1}
	for name, before := range map[string]bool{"kept before": true, "kept meanwhile": false} {
		t.Run(name, func(t *testing.T) {
			k := &keeping{}
			w := &Worker{ex: k, attempts: map[key]*attempt{keyOf(at): {launch: &api.Launch{Attempt: at}}}}
			w.blobs, w.casts, w.gangs = &blobs{}, newSpreads(w), newGangs(w)
			if before {
				k.held = []*api.Held{{Job: "j", Task: 3, Attempt: at}}
			} else {
				k.after = func() {
					w.mu.Lock()
					defer w.mu.Unlock()
					delete(w.attempts, keyOf(at))
				}
			}
			h := w.hello().GetHello()
			if n := len(h.GetRunning()) + len(h.GetOutputs()); n != 1 {
				t.Errorf("running %v, outputs %v", h.GetRunning(), h.GetOutputs())
			}
		})
	}
}

// Keys of the worker are for our own code, and for programs only if the operator says so.
func TestProgramsGetNoKeys(t *testing.T) {
	w := &Worker{opt: Options{Inherit: []string{"MY_LICENCE"}}}
	for _, c := range []struct {
		program *api.Program
		keys    bool
	}{{&api.Program{JobFile: "job: grep"}, true}, {&api.Program{Blob: "00"}, false}} {
		names := w.inherited(c.program)
		for _, key := range []string{"AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_AUTHORIZATION_TOKEN", "HOME"} {
			if slices.Contains(names, key) != c.keys {
				t.Errorf("%v: %s is handed on: %v", c.program, key, !c.keys)
			}
		}
		for _, place := range []string{"AWS_ENDPOINT_URL", "AWS_REGION", "MY_LICENCE"} {
			if !slices.Contains(names, place) {
				t.Errorf("%v: %s is not handed on", c.program, place)
			}
		}
	}
}

// Tasks that can't say how far they are get longer.
func TestStall(t *testing.T) {
	for kind, want := range map[task.Kind]time.Duration{
		task.Plan: time.Hour, task.Map: 5 * time.Minute, task.Reduce: 5 * time.Minute, task.Commit: time.Hour, task.Abort: time.Hour,
	} {
		if got := stall(kind, 5*time.Minute); got != want {
			t.Errorf("%s: %v, want %v", kind, got, want)
		}
		if got := stall(kind, 0); got != 0 {
			t.Errorf("%s without a limit: %v", kind, got)
		}
	}
}
