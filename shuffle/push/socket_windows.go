// SPDX-License-Identifier: Apache-2.0

package push

import "syscall"

const errTooLarge = syscall.Errno(10040) // WSAEMSGSIZE
