// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"fmt"

	"github.com/quernmr/quern/mapreduce/input"
)

// linesOnly refuses input formats that a job over plain records cannot read.
func linesOnly(job string, in *input.Options) error {
	if in.Format == input.Parquet {
		return fmt.Errorf("%s reads lines, not Parquet", job)
	}
	return nil
}
