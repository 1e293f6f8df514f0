// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Package lloyd is tested where it is; here is what the command adds.
func TestByHand(t *testing.T) {
	in := filepath.Join(t.TempDir(), "in.csv")
	if err := os.WriteFile(in, []byte("x,y\n0,0\n0,2\n10,0\n10,2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := command{fields: "1, 2", start: "1,0; 9,0", dir: filepath.Join(t.TempDir(), "out")}
	var out, notes bytes.Buffer
	if err := run(t.Context(), []string{in}, c, &out, &notes); err != nil {
		t.Fatal(err)
	}
	const want = "0\t0\t1\t2\t2\n1\t10\t1\t2\t2\n"
	part, err := os.ReadFile(filepath.Join(c.dir, "part-00000"))
	if err != nil {
		t.Fatal(err)
	}
	if string(part) != want || out.Len() != 0 {
		t.Errorf("part %q, standard output %q", part, out.String())
	}
	if !strings.HasPrefix(notes.String(), "kmeans: 2 rounds, converged; inertia 4; sums are off by ") {
		t.Errorf("notes: %s", notes.String())
	}

	c.dir, c.rounds = "", 1
	notes.Reset()
	if err := run(t.Context(), []string{in}, c, &out, &notes); err != nil {
		t.Fatal(err)
	}
	if want := "0\t0\t1\t2\t6\n1\t10\t1\t2\t6\n"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
	if !strings.HasPrefix(notes.String(), "kmeans: 1 rounds, ended by their number; inertia 12;") {
		t.Errorf("notes: %s", notes.String())
	}
}

func TestErrors(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing.csv")
	for _, c := range []struct {
		input, want string
		c           command
	}{
		{missing, missing, command{fields: "1", clusters: 1}},
		{missing, `fields "1,x": want numbers`, command{fields: "1,x"}},
		{missing, "field 0: the first one is 1", command{fields: "0", clusters: 1}},
		{missing, `centroid "1,x": invalid syntax`, command{fields: "1,2", start: "3,4;1,x"}},
		{missing, `centroid "1": want 2 coordinates`, command{fields: "1,2", start: "1"}},
	} {
		var out, notes bytes.Buffer
		err := run(t.Context(), []string{c.input}, c.c, &out, &notes)
		if err == nil || !strings.Contains(err.Error(), c.want) || out.Len()+notes.Len() != 0 {
			t.Errorf("error %v, want %q; output %q, notes %q", err, c.want, out.String(), notes.String())
		}
	}
}
