// SPDX-License-Identifier: Apache-2.0

package benchlab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"

	"github.com/quernmr/quern/internal/foldbench"
)

// Serve is a role's process; see [foldbench.Serve]. What else the process writes to
// standard output comes to standard error: a stray line would end the calls.
func Serve(roles map[string]func(context.Context) any, name string, in io.Reader, out io.Writer) error {
	in, out, err := aside(in, out)
	if err != nil {
		return fmt.Errorf("role %s: %w", name, err)
	}
	return foldbench.Serve(roles, name, in, out)
}

// Spin starts two processes per processor that do nothing but use it, and returns what ends
// them. The place is foldbench's own roles'.
func Spin(ctx context.Context, place foldbench.Place) (end func() error, err error) {
	var all []*foldbench.Process
	end = func() error {
		var errs []error
		for _, p := range all {
			errs = append(errs, p.Close())
		}
		return errors.Join(errs...)
	}
	for range 2 * runtime.NumCPU() {
		p, err := foldbench.Start(ctx, place, "spin")
		if err != nil {
			return nil, errors.Join(err, end())
		}
		all = append(all, p)
		if err := p.Call(ctx, "Ready", &foldbench.None{}, &foldbench.None{}); err != nil {
			return nil, errors.Join(err, end())
		}
	}
	return end, nil
}
