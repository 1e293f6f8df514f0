// SPDX-License-Identifier: Apache-2.0

package allreduce

import "golang.org/x/sys/unix"

// giveWay lets others have the processor, if any want it.
func giveWay() { _, _, _ = unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }
