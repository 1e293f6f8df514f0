// SPDX-License-Identifier: Apache-2.0

package labnode

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"testing"

	"go.uber.org/goleak"

	"github.com/quernmr/quern/internal/netlab"
)

type config struct{ Add int }

func TestMain(m *testing.M) {
	if Child(func(cfg config, o *Orders) error {
		if cfg.Add < 0 {
			return errors.New("it is told to fail")
		}
		if err := o.Ready(); err != nil {
			return err
		}
		for {
			var n int
			if err := o.Next(&n); errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				return err
			}
			if n < 0 {
				os.Exit(3)
			}
			if err := o.Answer(n + cfg.Add); err != nil {
				return err
			}
		}
	}) {
		return
	}
	goleak.VerifyTestMain(m)
}

// TestProcess gives orders to a process, and has it end in all the ways there are.
func TestProcess(t *testing.T) {
	if err := netlab.Available(); err != nil {
		t.Skip(err)
	}
	lab, err := netlab.New(netlab.Options{Hosts: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := lab.Close(); err != nil {
			t.Error(err)
		}
	}()
	start := func() *Process {
		t.Helper()
		p, err := Start(lab.Host(1), config{Add: 5})
		if err != nil {
			t.Fatal(err)
		}
		for n := range 3 {
			var got int
			if err := p.Ask(n, &got); err != nil || got != n+5 {
				t.Errorf("%d: %d, %v", n, got, err)
			}
		}
		return p
	}
	if err := start().End(); err != nil {
		t.Errorf("it ends: %v", err)
	}
	p := start()
	p.Kill()
	if err := p.Ask(1, new(int)); err == nil {
		t.Error("a process that was killed answers")
	}
	p = start()
	if err := p.Ask(-1, new(int)); err == nil {
		t.Error("a process that ended answers")
	}
	var status *exec.ExitError
	if err := p.End(); !errors.As(err, &status) || status.ExitCode() != 3 {
		t.Errorf("it ended by itself: %v", err)
	}
	if _, err := Start(lab.Host(1), config{Add: -1}); err == nil {
		t.Error("a process that fails is ready")
	}
	if err := lab.Host(1).Do(Bare); err != nil {
		t.Errorf("nothing was attached: %v", err)
	}
}
