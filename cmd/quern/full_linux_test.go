// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"testing"
)

// TestStandardOutputFull writes rows to a device that is always full.
func TestStandardOutputFull(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skipf("no such device here: %v", err)
	}
	defer full.Close()
	cmd := command(t, call{args: []string{"wordcount", file(t, "in", words)}})
	var stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = full, &stderr
	_ = cmd.Run()
	outcome{cmd.ProcessState.ExitCode(), "", stderr.String()}.failure(t, exitOutput, "no space left")
}
