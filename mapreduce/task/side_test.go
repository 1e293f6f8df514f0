// SPDX-License-Identifier: Apache-2.0

//go:build unix

package task

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A program reads its side inputs where they lie in files that it inherited, at the border of a
// page or not, and its own children do not inherit them.
func TestHandOn(t *testing.T) {
	page := int64(os.Getpagesize())
	content := make([]byte, 3*page)
	copy(content, "first")
	copy(content[page-2:], "over the border")
	copy(content[2*page:], "at the border")
	copy(content[3*page-3:], "end")
	path := filepath.Join(t.TempDir(), "content")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var given []SideInput
	hand := func(cmd *exec.Cmd) {
		given = append(given,
			HandOn(cmd, "first", f, 0, 5), HandOn(cmd, "over", f, page-2, 15), HandOn(cmd, "empty", f, 7, 0),
			HandOn(cmd, "at", f, 2*page, 13), HandOn(cmd, "end", f, 3*page-3, 3), HandOn(cmd, "none", nil, 0, 0))
	}
	// They may be handed on before the pipes are and afterwards.
	for _, before := range []bool{true, false} {
		given = nil
		exe, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(exe)
		cmd.Env, cmd.Stderr = append(os.Environ(), roleEnv+"=sides"), os.Stderr
		if before {
			hand(cmd)
		}
		c, err := Pipe(cmd)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if !before {
			hand(cmd)
		}
		err = cmd.Start()
		c.Started()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Send(&Request{Protocol: Protocol, SideInputs: given}); err != nil {
			t.Fatal(err)
		}
		m, err := c.Recv()
		if err != nil || m.Commit == nil {
			t.Fatalf("%+v, %v", m, err)
		}
		want := []string{"first=first", "over=over the border", "empty=", "at=at the border", "end=end", "none=", "0\n0\n"}
		if !slices.Equal(m.Commit.Notes, want) {
			t.Errorf("got %q", m.Commit.Notes)
		}
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}
}

// What a request says of side inputs is looked at before any of it is believed.
func TestSideInputsAreChecked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "content")
	if err := os.WriteFile(path, []byte("0123456789"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var many []SideInput
	for i := range MaxSideInputs + 1 {
		many = append(many, SideInput{Name: fmt.Sprint(i)})
	}
	for _, c := range []struct {
		sides []SideInput
		want  string // "" if they are right
	}{
		{sides: []SideInput{{Name: "a", Descriptor: 3, Size: 10}}},
		{sides: many[:MaxSideInputs]},
		{sides: many, want: "there are 65, and 64 are the most"},
		{sides: []SideInput{{}}, want: `"": it has no name`},
		{sides: []SideInput{{Name: "a"}, {Name: "\x7f"}}, want: `"\x7f": its name has the byte 0x7f at 0`},
		{sides: []SideInput{{Name: "a"}, {Name: "a"}}, want: `"a": it is there twice`},
		{sides: []SideInput{{Name: "a", Descriptor: 3, Size: 11}}, want: `"a": its file ends at byte 10, before 11`},
		{sides: []SideInput{{Name: "a", Descriptor: 3, Size: 5, Offset: 6}}, want: `"a": its file ends at byte 10, before 11`},
		{sides: []SideInput{{Name: "a", Descriptor: 3, Size: -1}}, want: `"a": -1 bytes from byte 0 on`},
		{sides: []SideInput{{Name: "a", Descriptor: 3, Size: 1, Offset: -1}}, want: `"a": 1 bytes from byte -1 on`},
		{sides: []SideInput{{Name: "a", Descriptor: 3, Size: 1 << 62, Offset: 1 << 62}}, want: `"a": `},
		{sides: []SideInput{{Name: "a", Descriptor: 2, Size: 1}}, want: `"a": descriptor 2`},
		{sides: []SideInput{{Name: "a", Descriptor: 4, Size: 1}}, want: `"a": descriptor 4`}, // of requests
		{sides: []SideInput{{Name: "a", Descriptor: 5, Size: 1}}, want: `"a": descriptor 5`}, // of replies
		{sides: []SideInput{{Name: "a", Descriptor: 900, Size: 1}}, want: `"a": descriptor 900: bad file descriptor`},
	} {
		conn, cmd := child(t, "sides", func(cmd *exec.Cmd) { cmd.ExtraFiles = append(cmd.ExtraFiles, f) })
		if err := conn.Send(&Request{Protocol: Protocol, SideInputs: c.sides}); err != nil {
			t.Fatal(err)
		}
		m, err := conn.Recv()
		switch {
		case err != nil:
			t.Errorf("%+v: %v", c.sides, err)
		case c.want == "":
			if m.Commit == nil {
				t.Errorf("%+v: %+v", c.sides, m.Error)
			}
		case m.Error == nil || !strings.Contains(m.Error.Message, c.want) || m.Error.Permanent:
			t.Errorf("%+v: %+v", c.sides, m.Error)
		}
		_ = conn.Close()
		_ = cmd.Wait()
	}
}

func TestCheckSideName(t *testing.T) {
	for name, ok := range map[string]bool{
		"a": true, "stop words": true, "~!\"": true, strings.Repeat("x", 64): true,
		"": false, strings.Repeat("x", 65): false, "a\n": false, "\x7f": false, "ü": false, "\x00": false,
	} {
		if err := CheckSideName(name); (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
	}
}
