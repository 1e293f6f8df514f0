// SPDX-License-Identifier: Apache-2.0

package objectlab

import (
	"os/exec"
	"syscall"
)

// endWithParent has the server end with the test, however that ends.
func endWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
