// SPDX-License-Identifier: Apache-2.0

package benchlab

import (
	"context"
	"fmt"
	"io"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/quernmr/quern/internal/foldbench"
)

func init() { roles["noisy"] = func(context.Context) any { return noisy{} } }

// noisy is a role that uses standard input and output itself.
type noisy struct{}

// Speak answers with what it read.
func (noisy) Speak(in *int, out *string) error {
	fmt.Println("out of place", *in)
	if _, err := unix.Write(1, []byte("and again\n")); err != nil {
		return err
	}
	b, err := io.ReadAll(os.Stdin)
	*out = fmt.Sprintf("%d, %q", *in, b)
	return err
}

// TestNoisyRole has what a role writes to standard output, and reads from standard input, not
// mix with its calls.
func TestNoisyRole(t *testing.T) {
	p, err := foldbench.Start(t.Context(), place(t, "lab"), "noisy")
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		var got string
		if err := p.Call(t.Context(), "Speak", &i, &got); err != nil || got != fmt.Sprintf(`%d, ""`, i) {
			t.Errorf("call %d: %q, %v", i, got, err)
		}
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}
