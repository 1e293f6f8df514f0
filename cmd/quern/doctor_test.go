// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"strings"
	"testing"
)

// doctorJSON decodes what doctor --json prints. It ends with 1 exactly if the kernel can't fold.
func doctorJSON(t *testing.T, o outcome) (r doctorReport) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(o.stdout))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		t.Fatalf("%v in %q; stderr:\n%s", err, o.stdout, o.stderr)
	}
	if d.More() || strings.Count(o.stdout, "\n") != 1 {
		t.Errorf("stdout is not one line: %q", o.stdout)
	}
	want := exitOK
	switch {
	case !r.KernelFold:
		want = exitFailed
	case r.Folds == "":
		want = exitUsage
	}
	if o.code != want {
		t.Errorf("exit code %d, want %d; stderr:\n%s", o.code, want, o.stderr)
	}
	if (o.code != 0) != strings.HasPrefix(o.stderr, "quern: ") {
		t.Errorf("exit code %d, and stderr is %q", o.code, o.stderr)
	}
	return r
}

func TestDoctor(t *testing.T) {
	t.Parallel()
	r := doctorJSON(t, quern(t, "doctor", "--json", "--run-dir", t.TempDir()))
	if len(r.Checks) == 0 || r.Mode != "auto" || r.Folds != "user" || r.Why == "" || r.XDPMode != "native" {
		t.Errorf("report: %+v", r.Report)
	}
	for _, c := range r.Checks {
		if c.Name == "" || c.Found == "" || c.State != "ok" && c.State != "warning" && c.State != "missing" {
			t.Errorf("check: %+v", c)
		}
		if c.State == "missing" && c.Fix == "" {
			t.Errorf("%s is missing, and what mends it is not said", c.Name)
		}
	}
	o := quern(t, "doctor", "--run-dir", t.TempDir(), "--clean")
	for _, c := range r.Checks {
		if !strings.Contains(o.stdout, string(c.State)) || !strings.Contains(o.stdout, c.Name) {
			t.Errorf("the table has no %s:\n%s", c.Name, o.stdout)
		}
	}
	if !strings.HasSuffix(o.stdout, "\nauto: "+r.Why+"\n") || !strings.Contains(o.stdout, "no leftovers") || strings.Contains(o.stdout, "\x1b") {
		t.Errorf("table:\n%s", o.stdout)
	}
}

func TestDoctorUsage(t *testing.T) {
	t.Parallel()
	quern(t, "doctor", "eth0").failure(t, exitUsage, "eth0")
	quern(t, "doctor", "--interface=").failure(t, exitUsage, "--interface")
	quern(t, "doctor", "--xdp-mode=auto").failure(t, exitUsage, "--xdp-mode", "native, generic")
	quern(t, "doctor", "--interfaec=lo").failure(t, exitUsage, "did you mean --interface")
	o := quern(t, "doctor", "--interface", "no-such-device", "--json", "--run-dir", t.TempDir())
	if r := doctorJSON(t, o); r.KernelFold || r.Interface != "no-such-device" {
		t.Errorf("report: %+v", r.Report)
	}
}
