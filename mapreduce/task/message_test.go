// SPDX-License-Identifier: Apache-2.0

package task

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
)

func TestMessagesComeBackWhole(t *testing.T) {
	var stream bytes.Buffer
	w := &writer{w: &stream}
	sent := []*Reply{
		{Hello: &Hello{Protocol: Protocol, Version: "v1"}},
		{Progress: &Progress{Phase: "map\n\u2028", Done: 0.25}},
		{Plan: &PlanResult{Name: "j", Plan: json.RawMessage("{\n \"a\": 1\n}"), Ticket: []byte{0, 255, 10}, Notes: []string{strings.Repeat("x", 200_000)}}},
		{Map: &MapResult{Parts: []Manifest{{Pairs: 1, Digest: 1<<64 - 1, Check: []uint64{1<<63 + 1}, SumAbs: [][2]uint64{{1, 1<<64 - 1}}, Keys: [5]uint64{1, 2, 3, 4, 5}}}}},
		{Error: &Error{Message: "no", Permanent: true}},
	}
	for _, m := range sent {
		if err := w.write(m); err != nil {
			t.Fatal(err)
		}
	}
	sent[2].Plan.Plan = json.RawMessage(`{"a":1}`) // compacted, so that it stays on its line
	r := newReader(&stream, MaxMessage)
	for i, want := range sent {
		got, err := r.reply()
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("message %d: %+v, %v", i, got, err)
		}
	}
	if _, err := r.reply(); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
}

func TestBadMessages(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want error
	}{
		"nothing":         {"", io.EOF},
		"cut":             {`{"hello":{}`, io.ErrUnexpectedEOF},
		"no JSON":         {"hello\n", ErrMessage},
		"empty line":      {"\n", ErrMessage},
		"no content":      {"{}\n", ErrMessage},
		"two contents":    {`{"hello":{},"error":{"message":"x"}}` + "\n", ErrMessage},
		"of a later time": {`{"novelty":{}}` + "\n", ErrMessage},
		"another type":    {`{"hello":3}` + "\n", ErrMessage},
		"too long":        {`{"hello":{"version":"` + strings.Repeat("x", 1000) + `"}}` + "\n", ErrMessage},
		"endless":         {strings.Repeat("x", 100_000), ErrMessage},
	} {
		_, err := newReader(strings.NewReader(c.text), 500).reply()
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// One as long as is allowed, over several buffers.
	text := `{"hello":{"version":"` + strings.Repeat("x", 200_000) + `"}}` + "\n"
	m, err := newReader(strings.NewReader(text), len(text)).reply()
	if err != nil || len(m.Hello.Version) != 200_000 {
		t.Errorf("the longest message: %v", err)
	}
	if _, err := newReader(strings.NewReader(text), len(text)-1).reply(); !errors.Is(err, ErrMessage) {
		t.Errorf("one byte longer: %v", err)
	}
}

type failing struct{ after int }

func (f *failing) Write(p []byte) (int, error) {
	if n := f.after; n < len(p) {
		return n, errors.New("full")
	}
	f.after -= len(p)
	return len(p), nil
}

// A message that went out in part must not be followed by another one.
func TestNothingAfterHalfAMessage(t *testing.T) {
	f := &failing{after: 5}
	w := &writer{w: f}
	if w.write(&Reply{Hello: &Hello{}}) == nil {
		t.Fatal("no error")
	}
	f.after = 1000
	if w.write(&Reply{Hello: &Hello{}}) == nil || f.after != 1000 {
		t.Error("written after half a message")
	}
}

func FuzzReply(f *testing.F) {
	for _, m := range []*Reply{
		{Hello: &Hello{1, "v"}},
		{Call: &Call{Call: 1, Job: "j"}},
		{Map: &MapResult{Scale: []uint8{1}, Parts: []Manifest{{}}}},
		{Reduce: &ReduceResult{Check: []uint64{1 << 63}}},
	} {
		b, err := json.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(append(b, '\n'))
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r := newReader(bytes.NewReader(b), 1000)
		for {
			m, err := r.reply()
			if err != nil {
				return
			}
			// What was understood is said again in the same way.
			var again bytes.Buffer
			if err := (&writer{w: &again}).write(m); err != nil {
				t.Fatal(err)
			}
			n, err := newReader(&again, MaxMessage).reply()
			if err != nil {
				t.Fatalf("%s: %v", b, err)
			}
			x, _ := json.Marshal(m)
			y, _ := json.Marshal(n)
			if !bytes.Equal(x, y) {
				t.Fatalf("%s became %s", x, y)
			}
		}
	})
}

func FuzzRequest(f *testing.F) {
	b, err := json.Marshal(&Request{Protocol: Protocol, Kind: Reduce, Reduce: &ReduceRequest{Runs: []RunFile{{Path: "x", Scale: []uint8{3}}}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(append(b, '\n'))
	f.Fuzz(func(t *testing.T, b []byte) {
		h := &Hosted{reader: newReader(bytes.NewReader(b), 1000)}
		if r, err := h.Request(); err == nil && r.Protocol != Protocol {
			t.Fatal("another protocol was taken")
		}
	})
}
