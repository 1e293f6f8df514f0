// SPDX-License-Identifier: Apache-2.0

package benchlab

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/quernmr/quern/internal/foldbench"
)

var roles = map[string]func(context.Context) any{}

// TestMain is also the command that serves roles.
func TestMain(m *testing.M) {
	serve := map[string]func() error{
		"lab":  func() error { return Serve(roles, os.Args[1], os.Stdin, os.Stdout) },
		"fold": func() error { return foldbench.ServeRole(os.Args[1], os.Stdin, os.Stdout) },
	}[os.Getenv("BENCHLAB_ROLE")]
	if serve != nil {
		if err := serve(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func place(t *testing.T, role string) foldbench.Place {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return foldbench.Place{Command: []string{self}, Env: []string{"BENCHLAB_ROLE=" + role}}
}

// TestProcessTime uses this process's own, which the runtime tells too.
func TestProcessTime(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("processor times of other processes are read on Linux alone")
	}
	before, err := ProcessTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	x := uint64(1)
	for begin := time.Now(); time.Since(begin) < 20*time.Millisecond; x *= 3 {
	}
	after, err := ProcessTime(os.Getpid())
	if err != nil || after <= before {
		t.Errorf("%v after %v, %v (%d)", after, before, err, x)
	}
}

// TestUsed has processes that use processors, and tells what they used.
func TestUsed(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("processor times of other processes are read on Linux alone")
	}
	end, err := Spin(t.Context(), place(t, "fold"))
	if err != nil {
		t.Fatal(err)
	}
	before, err := Used()
	if err != nil {
		t.Fatal(err)
	}
	for begin := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		now, err := Used()
		if err != nil {
			t.Fatal(err)
		}
		if now.Machine(before, 0) >= 50*time.Millisecond {
			if least, most := now.Machine(before, 100), now.Machine(before, 0); least >= most {
				t.Errorf("with a background %v, without %v", least, most)
			}
			break
		}
		if time.Since(begin) > time.Minute {
			t.Fatal("processes that use all processors use none")
		}
	}
	if err := end(); err != nil {
		t.Error(err)
	}
}
